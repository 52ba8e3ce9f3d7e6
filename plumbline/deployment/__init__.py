"""Required objects of a suite on a Prefect server, and their comparison. Pure."""

from plumbline.deployment.items import CONTROLLERS_POOL as CONTROLLERS_POOL
from plumbline.deployment.items import GATE as GATE
from plumbline.deployment.items import LOST as LOST
from plumbline.deployment.items import REGRESSION as REGRESSION
from plumbline.deployment.items import RESUMED as RESUMED
from plumbline.deployment.items import ROUND_TAG as ROUND_TAG
from plumbline.deployment.items import UPGRADE as UPGRADE
from plumbline.deployment.items import UPGRADE_EVENT as UPGRADE_EVENT
from plumbline.deployment.items import WATCH as WATCH
from plumbline.deployment.items import Item as Item
from plumbline.deployment.items import desired as desired
from plumbline.deployment.items import desired_at as desired_at
from plumbline.deployment.items import gate_deployment as gate_deployment
from plumbline.deployment.items import job_variables as job_variables
from plumbline.deployment.items import pool_limit as pool_limit
from plumbline.deployment.items import suite_parameters as suite_parameters
from plumbline.deployment.items import suite_tag as suite_tag
from plumbline.deployment.items import training_deployment as training_deployment
from plumbline.deployment.plan_items import PlanItem as PlanItem
from plumbline.deployment.plan_items import compare_items as compare_items
from plumbline.deployment.plan_items import lines as lines
