"""`fedssl export`: an encoder out of a run as files that need no fedssl."""

from fedssl.encoders.export.run import Exported, export_encoder

__all__ = ["Exported", "export_encoder"]
