"""EC2 Auto Scaling groups. Needs `autoscaling:DescribeAutoScalingGroups` and `autoscaling:SetDesiredCapacity`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from plumbline.data.stores.foreign_errors import cause_of
from plumbline.data.stores.s3_api import find_credentials
from plumbline.schema.errors import AccessError, ConfigurationError, PlumblineError, UnavailableError

T = TypeVar("T")
_REFUSED = ("AccessDenied", "AuthFailure", "ExpiredToken", "InvalidClientTokenId", "UnauthorizedOperation")
_WRONG = ("ValidationError", "ScalingActivityInProgress")


class AutoScalingGroup:
    """EC2 Auto Scaling group as a `MachineGroup`, by boto3."""

    def __init__(self, url: str, region: str, name: str) -> None:
        self._url, self._region, self._name = url, region, name

    def size(self) -> int:
        """Return the desired capacity."""
        found = self._ask(lambda api: api.describe_auto_scaling_groups(AutoScalingGroupNames=[self._name]))
        groups = found["AutoScalingGroups"]
        if not groups:
            raise ConfigurationError("the Auto Scaling group does not exist", where=self._url)
        return int(groups[0]["DesiredCapacity"])

    def resize(self, count: int) -> None:
        """Set the desired capacity."""
        self._ask(
            lambda api: api.set_desired_capacity(
                AutoScalingGroupName=self._name, DesiredCapacity=count, HonorCooldown=False
            )
        )

    def _ask(self, request: Callable[[Any], T]) -> T:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import ClientError
        from botocore.session import get_session

        session = get_session()
        find_credentials(session, self._url)
        try:
            settings = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "max_attempts": 5})
            api = boto3.Session(botocore_session=session)
            return request(api.client("autoscaling", region_name=self._region, config=settings))
        except ClientError as error:
            raise self._refusal(error.response.get("Error", {})) from error
        except Exception as error:
            raise UnavailableError(cause_of(error), where=self._url) from error

    def _refusal(self, answer: dict[str, str]) -> PlumblineError:
        code, text = answer.get("Code", ""), answer.get("Message", "")
        if code.startswith(_REFUSED):
            return AccessError(
                f"refused: {code}: {text}", where=self._url, hint="docs/how-to/machines-for-a-round.md lists the rights"
            )
        kind = ConfigurationError if code in _WRONG else UnavailableError
        return kind(f"{code}: {text}", where=self._url, hint="check the group's name, and its maximum size")
