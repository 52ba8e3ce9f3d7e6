"""Record any PyTorch training loop: `with capture("runs/aws", model, optimizer, steps=20) as run: ... run.step()`."""

from plumbline.train.capture.session import Capture as capture  # noqa: N813 - used as a function
from plumbline.train.capture.trainer import hugging_face_callback, lightning_callback

__all__ = ["capture", "hugging_face_callback", "lightning_callback"]
