"""The server's app for Flower: it hands the grid to the run and says what came of it by how it ends."""

from collections.abc import Callable

from fedssl.engines.flower import Grid
from fedssl.engines.flower_api import Context, ServerApp
from fedssl.engines.flower_messages import Facts


def make_server_app(run: Callable[[Grid, Facts], None]) -> ServerApp:
    """An app that calls `run` with the grid and the run's settings (scalars: Flower takes no others)."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid, dict(context.run_config))

    return app


def key_bytes(public_key: bytes) -> bytes:
    """A public key of a node, from the text of its file to the form in which the grid reports it."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key = load_ssh_public_key(public_key)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return bytes(public_key_to_bytes(key))
