"""What is used of Flower, from one place: its telemetry and update check are off before it is imported."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from flwr.app import Array as Array
from flwr.app import ArrayRecord as ArrayRecord
from flwr.app import ConfigRecord as ConfigRecord
from flwr.app import Context as Context
from flwr.app import Message as Message
from flwr.app import RecordDict as RecordDict
from flwr.clientapp import ClientApp as ClientApp
from flwr.common.constant import ErrorCode as ErrorCode
from flwr.serverapp import ServerApp as ServerApp
