"""Decision engine over a platform's nights.

Detectors, limits and the tests of experiments. Pure.
"""

from plumbline.history.allowed import Allowed as Allowed
from plumbline.history.allowed import allowed_for as allowed_for
from plumbline.history.decision import Answers as Answers
from plumbline.history.decision import Decision as Decision
from plumbline.history.decision import Past as Past
from plumbline.history.series_state import decide as decide
