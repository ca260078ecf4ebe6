"""Whether a schedule fits an application and a machine."""

from __future__ import annotations

from metropolis.plan.application import Application
from metropolis.plan.machine import Machine
from metropolis.plan.placement import place
from metropolis.plan.schedule import Schedule, ScheduleStage
from metropolis.types import MetropolisError


def check_schedule(schedule: Schedule, application: Application, machine: Machine) -> None:
    """Raises MetropolisError unless each stage runs nodes of `application` with valid plans on GPUs
    of `machine`, and some stage runs each node."""
    models = {node.name: node.model for node in application.nodes}
    for number, stage in enumerate(schedule.stages, 1):
        where = f"stage {number} of the schedule"
        if not stage.nodes:
            raise MetropolisError(f"{where} has no nodes; a stage runs at least one")
        if unknown := [name for name in stage.nodes if name not in models]:
            raise MetropolisError(
                f"{where} runs {unknown[0]!r}; {application.name} has no such node"
            )
        if stage.boundary is not None and stage.boundary.node not in stage.nodes:
            raise MetropolisError(
                f"{where} ends by {stage.boundary.node!r}, which it does not run; name one of "
                f"{', '.join(sorted(stage.nodes))}"
            )
        for name, node in stage.nodes.items():
            _check_tensor_parallel(where, name, node.tp, models[name], machine)
        if place(machine.gpus, machine.nvlink_group, stage.planned.plans, {}, {}) is None:
            raise MetropolisError(f"{where} does not fit on {machine.gpus} GPUs")
        _check_gpus(where, stage, machine)
    missing = models.keys() - {name for stage in schedule.stages for name in stage.nodes}
    if missing:
        raise MetropolisError(
            f"no stage of the schedule runs {', '.join(sorted(missing))}; make it again with: "
            "metropolis plan show APP --out FILE"
        )


def _check_tensor_parallel(
    where: str, name: str, tensor_parallel: int, model: str, machine: Machine
) -> None:
    valid = sorted({plan.tp for plan in machine.plans(model)})
    if tensor_parallel not in valid:
        raise MetropolisError(
            f"{where} runs {name!r} with tp {tensor_parallel}; on {machine.gpus} x {machine.gpu} "
            f"{model} fits and can be divided with tp {', '.join(map(str, valid))}"
        )


def _check_gpus(where: str, stage: ScheduleStage, machine: Machine) -> None:
    for name, node in stage.nodes.items():
        for gpu in (gpu for copy in node.gpus for gpu in copy):
            if gpu >= machine.gpus:
                raise MetropolisError(
                    f"{where} runs {name!r} on GPU {gpu}; the GPUs of the machine are 0 to "
                    f"{machine.gpus - 1}"
                )
