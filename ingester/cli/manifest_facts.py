"""The facts that ``manifest log`` and ``manifest show`` tell of a version, as JSON has them."""

from collections import Counter
from typing import Any

import msgspec

from persist.manifest import Add, Remove, Step, TableState
from persist.manifest.actions import decoded_size
from persist.partitioning import PartitionSpec, folder_of
from persist.table import TableDefinition


def version_facts(step: Step) -> dict[str, Any]:
    """One version in the log: who made it, what it did, and the table after it."""
    actions = step.changelog.actions
    added = sum(action.rows for action in actions if isinstance(action, Add))
    return {
        "version": step.commit.version,
        "uid": step.commit.uid,
        "parent": step.commit.parent,
        "at": step.commit.at,
        "writer": step.commit.writer,
        "actions": Counter(str(action.__struct_config__.tag) for action in actions),
        "rows_added": added,
        "rows_removed": step.rows_removed,
        "files_removed": sum(isinstance(action, Remove) for action in actions),
        "rows": step.state.rows,
        "files": step.state.file_count,
        "bytes": step.state.bytes,
    }


def state_facts(state: TableState) -> dict[str, Any]:
    """The content of a version, with lists of columns, partitions, checkpoints and so on."""
    definition = TableDefinition.of_state(state)
    specs = {spec_id: PartitionSpec.parse(spec.fields) for spec_id, spec in state.specs.items()}
    return {
        "version": state.version,
        "uid": state.uid,
        "files": state.file_count,
        "rows": state.rows,
        "bytes": state.bytes,
        "schema_id": definition.schema_id,
        "columns": [{"name": f.name, "type": str(f.type)} for f in definition.schema],
        "partition_by": list(definition.spec.texts()),
        "primary_key": list(definition.primary_key),
        "sort_by": list(definition.sort_by),
        "timestamp_unit": definition.timestamp_unit,
        "horizon": state.horizon,
        "partitions": sorted(
            (
                {
                    "partition": folder_of(specs[spec_id], values),
                    "spec_id": spec_id,
                    "files": len(adds),
                    "rows": sum(add.rows for add in adds),
                    "bytes": sum(add.bytes for add in adds),
                }
                for (spec_id, values), adds in state.partitions.items()
            ),
            key=lambda one: (one["spec_id"], one["partition"]),
        ),
        "applied": [
            {
                "ingester_id": ingester_id,
                "epoch": epoch,
                "partition": folder_of(specs[spec_id], values)
                if spec_id in specs
                else f"{list(values)}, before a copy made the table anew",
                "sequence": seq,
            }
            for (ingester_id, epoch, spec_id, values), seq in state.applied.items()
        ],
        "checkpoints": [
            {
                "partition": one.partition,
                "bytes": decoded_size(one.state),
                "shared": one.shared,
                "at": one.at,
                "origin": one.origin,
                "sequence": one.sequence,
            }
            for _, one in sorted(state.checkpoints.items())
            if one.state is not None
        ],
        "shared": [
            {"shared": one.id, "bytes": decoded_size(one.state)}
            for _, one in sorted(state.shared_states.items())
        ],
        "epochs_complete": sorted(state.epochs_complete),
        "writers": [msgspec.structs.asdict(writer) for writer in state.writers.values()],
    }
