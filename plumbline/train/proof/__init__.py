"""The recorded step repeated by its own definition: modules, loss, clipping, update, draws."""
