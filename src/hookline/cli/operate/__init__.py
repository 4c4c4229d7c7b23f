"""The commands that work on a store: hooks, operations, approvals, deliveries, endpoints, keys, logs and `serve`."""

from hookline.cli.operate._deliveries import deliveries_app as deliveries_app
from hookline.cli.operate._endpoints import endpoints_app as endpoints_app
from hookline.cli.operate._endpoints import rotate_master_key as rotate_master_key
from hookline.cli.operate._hooks import hooks_app as hooks_app
from hookline.cli.operate._keys import keys_app as keys_app
from hookline.cli.operate._logs import logs_app as logs_app
from hookline.cli.operate._operations import approve as approve
from hookline.cli.operate._operations import operations_app as operations_app
from hookline.cli.operate._operations import reject as reject
from hookline.cli.operate._serve import serve as serve
