"""Registry of the gates (pass/fail rules), in report order."""

from plumbline.judge.gates.accuracy import accuracy_gate
from plumbline.judge.gates.gate import Gate
from plumbline.judge.gates.learned import learned_gate
from plumbline.judge.gates.throughput import throughput_gate

GATES: tuple[Gate, ...] = (
    accuracy_gate,
    learned_gate,
    throughput_gate,
)
