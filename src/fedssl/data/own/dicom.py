"""DICOM files: the first frame as viewers show it. Only what describes pixels is read; names and other tags never are.

Nothing that pydicom says of a file goes further, neither its warnings nor its errors: they may quote the file.
"""

import importlib.util
import logging
import re
import warnings
from typing import Any

import numpy as np
from PIL import Image

from fedssl.data.own.decoding import AnyArray, ImageFile, RefusedError, UInt8Array, check_size

START, MAGIC = 128, b"DICM"  # where the four letters are
COLOURS = ("Red", "Green", "Blue")
PIXELS = ("PixelData", "FloatPixelData", "DoubleFloatPixelData")
TAGS = (  # all that is read of a file
    *("Rows", "Columns", "SamplesPerPixel", "PhotometricInterpretation", "PlanarConfiguration", "NumberOfFrames"),
    *("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "ExtendedOffsetTable"),
    *("ExtendedOffsetTableLengths", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence", "WindowCenter"),
    *("WindowWidth", "VOILUTFunction", "VOILUTSequence"),
    *(f"{colour}PaletteColorLookupTableDescriptor" for colour in COLOURS),
    *(f"{colour}PaletteColorLookupTableData" for colour in COLOURS),
    *(f"Segmented{colour}PaletteColorLookupTableData" for colour in COLOURS),
    *PIXELS,
)
LOG = logging.getLogger("pydicom")
LOG.disabled, LOG.propagate = True, False  # it quotes values of a file; the loggers below it speak through it
SILENT = ("ignore", None, Warning, re.compile("pydicom"), 0)  # as `warnings` keeps a filter


def is_dicom(file: ImageFile) -> bool:
    file.seek(START)
    return file.read(len(MAGIC)) == MAGIC


def open_dicom(file: ImageFile) -> tuple[Image.Image, str]:
    """The first frame in 8 bits, grey or RGB, and its kind; `RefusedError` says why there is none."""
    if importlib.util.find_spec("pydicom") is None:
        raise RefusedError('DICOM needs pydicom: pip install "fedssl[dicom]"')
    import pydicom

    if warnings.filters[:1] != [SILENT]:  # before all that others have put there since
        warnings.filterwarnings("ignore", module="pydicom")  # for good: other threads decode too
    file.seek(0)
    try:
        header = pydicom.dcmread(file, specific_tags=list(TAGS))
    except MemoryError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's
        raise RefusedError(f"damaged DICOM ({type(error).__name__})") from None
    if not any(name in header for name in PIXELS):
        raise RefusedError("DICOM without pixels")
    try:
        check_size(int(header.Columns), int(header.Rows))
        return Image.fromarray(_shown(header)), f"DICOM {_kind(header)}"
    except (RefusedError, MemoryError):
        raise
    except Exception as error:  # what pydicom raises on damaged files is no closed list
        raise RefusedError(_why(header, error)) from None


def _shown(header: Any) -> UInt8Array:
    """Stored values, rescaled, seen through the file's window, with black and white as it says."""
    from pydicom.pixels.processing import apply_color_lut, apply_modality_lut
    from pydicom.pixels.utils import pixel_array

    kind = _kind(header)
    stored = pixel_array(header, index=0)  # YBR comes as RGB
    if kind == "PALETTE COLOR":
        colours = apply_color_lut(stored, header)
        return np.asarray(colours if colours.dtype == np.uint8 else colours >> 8, np.uint8)
    if stored.ndim == 3:
        return np.asarray(stored >> max(0, int(header.BitsStored) - 8), np.uint8)
    if not kind.startswith("MONOCHROME"):
        raise RefusedError("DICOM of a photometric interpretation that is not understood")
    light = _windowed(apply_modality_lut(stored, header), header)
    shown: UInt8Array = np.rint(255 * (1 - light if kind == "MONOCHROME1" else light)).astype(np.uint8)
    return shown


def _windowed(values: AnyArray, header: Any) -> AnyArray:
    """From 0 to 1 by the file's first table or window; without either, from its smallest to its largest value."""
    from pydicom.pixels.processing import apply_voi

    if header.get("VOILUTSequence"):
        bits = int(header.VOILUTSequence[0].LUTDescriptor[2])
        return np.asarray(np.clip(apply_voi(values, header).astype(np.float64) / (2**bits - 1), 0, 1))
    centre, width = (_first(header.get(name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None:
        low, high = float(values.min()), float(values.max())
        return np.asarray((values - low) / (high - low)) if high > low else np.zeros(values.shape)
    return window(values, centre, width, str(header.get("VOILUTFunction") or "LINEAR"))


def window(values: AnyArray, centre: float, width: float, function: str = "LINEAR") -> AnyArray:
    """PS3.3 C.11.2.1.2: 0 below the window, 1 above it, a line or a sigmoid in it."""
    values = values.astype(np.float64)
    if function == "SIGMOID":
        with np.errstate(over="ignore"):
            return 1 / (1 + np.exp(-4 * (values - centre) / width))
    if function == "LINEAR":  # counts pixel values, so that width 1 is a threshold
        centre, width = centre - 0.5, width - 1
    return np.clip((values - centre) / width + 0.5, 0, 1) if width > 0 else (values > centre).astype(np.float64)


def _first(value: Any) -> float | None:
    """Of several windows the first, as viewers do."""
    many = not isinstance(value, str) and hasattr(value, "__len__")
    value = (value[0] if len(value) else None) if many else value
    return None if value in (None, "") else float(value)


def _kind(header: Any) -> str:
    """One of the standard's words: a file may hold anything in this place."""
    kind = str(header.get("PhotometricInterpretation", ""))
    known = ("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR", "RGB")
    return kind if kind in known or kind.startswith("YBR_") else "of unknown colours"


def _why(header: Any, error: Exception) -> str:
    """In our own words, with nothing out of the file but the standard's name of its compression."""
    from pydicom.uid import AllTransferSyntaxes

    syntax = getattr(header.file_meta, "TransferSyntaxUID", None)
    if syntax not in AllTransferSyntaxes:
        return "DICOM of an unknown transfer syntax"
    if syntax.is_compressed and isinstance(error, NotImplementedError | RuntimeError):
        return f"DICOM, compressed as {syntax.name}: install a decoder (pylibjpeg and its plugins), or it is damaged"
    return f"damaged DICOM ({type(error).__name__})"
