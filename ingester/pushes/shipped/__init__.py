"""Hooks that come with the product, to be named in ``hooks.classes`` as
``ingester.pushes.shipped:MinimumDelay``; also examples for hooks of your own.

    ``swap_hooks``   MinimumDelay, TimeWindow, StatisticsCheck: by time, and by the data
    ``http_hooks``   HealthCheck, PrometheusCheck, Webhook, Remote: over HTTP
    ``options``      reads the values of their configuration

Each class declares its configuration keys in ``options``. Start reading at ``swap_hooks``.
"""

from ingester.pushes.shipped.http_hooks import HealthCheck as HealthCheck
from ingester.pushes.shipped.http_hooks import PrometheusCheck as PrometheusCheck
from ingester.pushes.shipped.http_hooks import Remote as Remote
from ingester.pushes.shipped.http_hooks import Webhook as Webhook
from ingester.pushes.shipped.swap_hooks import MinimumDelay as MinimumDelay
from ingester.pushes.shipped.swap_hooks import StatisticsCheck as StatisticsCheck
from ingester.pushes.shipped.swap_hooks import TimeWindow as TimeWindow
