"""`starsd-edge export`: a checkpoint becomes a bundle that targets and hubs run, a bundle an engine."""

from __future__ import annotations

import typer

from starsd_edge.cli.commands import add_command
from starsd_edge.cli.export.options import ExportCommandOptions


def register(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "export", export, ExportCommandOptions)


def export(options: ExportCommandOptions) -> None:
    """Export a model to a bundle: graph, weights, tokenizer and a manifest with a hash of every file.

    The graph is compared with the model it was made from before the bundle is put in place. With --draft-head it is a
    head's bundle, for `run-draft`. With --engine the graph becomes an engine, too.
    """
    from starsd_edge.bundles.catalogue import bundles_at
    from starsd_edge.cli.export.make import make_bundle, make_engine
    from starsd_edge.running import listed

    with listed("export", bundles_at(options.model), model=options.model):
        if options.engine is None:
            make_bundle(options)
        else:
            make_engine(options)
