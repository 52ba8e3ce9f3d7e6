"""Description of a built model: parameters, modules and initial values."""

from __future__ import annotations

from torch import nn

from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import ModelEvidence, Parameter
from plumbline.train.digests import digest_each


def _settings(module: nn.Module) -> str:
    """Return a built module's class and plain attributes.

    For modules with children only numbers count: their flags and strings change with transformers' versions.
    """
    leaf = next(module.children(), None) is None
    kinds = (bool, int, float, str) if leaf else (int, float)
    values = []
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or name in {"training", "layer_idx"} or (isinstance(value, bool) and not leaf):
            continue
        if isinstance(value, kinds) or (leaf and isinstance(value, tuple) and all(isinstance(v, int) for v in value)):
            values.append(f"{name}={value}")
    return f"{type(module).__name__}({', '.join(values)})"


def describe_model(model: nn.Module) -> ModelEvidence:
    """Describe the built model: parameters, modules and initial values."""
    first: dict[int, str] = {}
    parameters, digests = [], digest_each(dict(model.named_parameters()))
    for name, value in model.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(value), name)
        parameters.append(
            Parameter(
                name=name,
                shape=tuple(value.shape),
                dtype=str(value.dtype).removeprefix("torch."),
                sha256=digests[owner],
                trainable=value.requires_grad,
                tied_to="" if owner == name else owner,
            )
        )
    return ModelEvidence(
        parameters=tuple(parameters),
        modules=tuple((name, _settings(module)) for name, module in model.named_modules()),
        weights_sha256=digest_json({p.name: p.sha256 for p in parameters}),
    )
