"""`serve --replicas`: what has to be so before Ray is imported, and how the command ends."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from typing import Any

from service.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, bad_input, ended_in_order

log = logging.getLogger("launchbound.replicas")


def serve_on_ray(
    settings: Any,  # noqa: ANN401 - as `settings_from` returns them
    replicas: str,
    cpus: int | None,
    address: str | None,
    engine_command: Sequence[str] | None = None,
) -> int:
    """Serve `settings` as `replicas`, with `cpus` each, on the Ray at `address`; returns the exit code.

    0 after a signal, or where another command has taken over; 2 where the settings cannot be used, with the
    reason in the log; 1 where the cluster ended. `engine_command` replaces the command line of the engines.
    """
    from service.ray_cluster import ClusterError, connected, environment

    try:
        os.environ.update(environment(address))
        import ray
        from ray.serve.exceptions import RayServeException

        from service.front.logs import set_up
        from service.replicas import NotStarted, replica_count, serve_replicas

        count = replica_count(replicas)
        if settings.engine_cpus is not None or settings.front_cpus is not None:
            raise ValueError(
                "ENGINE_CPUS and FRONT_CPUS are of one service: give every replica cores by --replica-cpus"
            )
    except (ValueError, ClusterError) as error:
        bad_input(error)
    except ModuleNotFoundError as error:
        bad_input(f"{error.name} is not installed here: install it with `pip install launchbound[ray]`")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_up(settings.log_format)
    as_text = settings.log_format == "text"  # lines of JSON would get Ray's prefix
    try:
        # In order twice: Ray sets handlers of its own when it is connected to.
        with ended_in_order(), connected(address, log_to_driver=as_text), ended_in_order():
            serve_replicas(settings, count, cpus, address is None, engine_command)
    except KeyboardInterrupt:
        return 0
    except (ray.exceptions.RayError, RayServeException, ConnectionError) as error:
        log.error("the cluster has ended: %s", (str(error).splitlines() or [type(error).__name__])[0])
        return EXIT_FAILED
    except (ClusterError, NotStarted, ValueError, OSError) as error:
        log.error(str(error))
        return EXIT_BAD_INPUT
    return 0
