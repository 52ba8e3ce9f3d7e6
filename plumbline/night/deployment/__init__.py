"""Objects of a suite on a Prefect server, and comparison. Pure."""

from plumbline.night.deployment.items import CONTROLLERS_POOL as CONTROLLERS_POOL
from plumbline.night.deployment.items import GATE as GATE
from plumbline.night.deployment.items import LOST as LOST
from plumbline.night.deployment.items import REGRESSION as REGRESSION
from plumbline.night.deployment.items import RESUMED as RESUMED
from plumbline.night.deployment.items import ROUND_TAG as ROUND_TAG
from plumbline.night.deployment.items import UPGRADE as UPGRADE
from plumbline.night.deployment.items import UPGRADE_EVENT as UPGRADE_EVENT
from plumbline.night.deployment.items import WATCH as WATCH
from plumbline.night.deployment.items import Item as Item
from plumbline.night.deployment.items import desired as desired
from plumbline.night.deployment.items import desired_at as desired_at
from plumbline.night.deployment.items import gate_deployment as gate_deployment
from plumbline.night.deployment.items import job_variables as job_variables
from plumbline.night.deployment.items import pool_limit as pool_limit
from plumbline.night.deployment.items import suite_parameters as suite_parameters
from plumbline.night.deployment.items import suite_tag as suite_tag
from plumbline.night.deployment.items import training_deployment as training_deployment
from plumbline.night.deployment.plan_items import PlanItem as PlanItem
from plumbline.night.deployment.plan_items import compare_items as compare_items
from plumbline.night.deployment.plan_items import lines as lines
