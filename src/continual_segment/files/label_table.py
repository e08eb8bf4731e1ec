"""Organ names inside a NIfTI header.

A label table in the XML of Connectome Workbench, which TotalSegmentator writes as well, so existing viewers
show names and colours. Colours follow from the label alone: the same organ looks the same in every file.
"""

from __future__ import annotations

import colorsys
from xml.etree import ElementTree

GOLDEN_RATIO = 0.618033988749895


def label_table(names: dict[int, str]) -> bytes:
    """The XML for these labels."""
    root = ElementTree.Element("CaretExtension")
    volume = ElementTree.SubElement(root, "VolumeInformation", Index="0")
    table = ElementTree.SubElement(volume, "LabelTable")
    for label, name in sorted(names.items()):
        red, green, blue = (f"{part:.3f}" for part in label_colour(label))
        entry = ElementTree.SubElement(
            table, "Label", Key=str(label), Red=red, Green=green, Blue=blue, Alpha="1"
        )
        entry.text = name
    ElementTree.SubElement(volume, "VolumeType").text = "Label"
    return ElementTree.tostring(root, encoding="UTF-8", xml_declaration=True)


def read_label_table(content: bytes | str) -> dict[int, str]:
    """Names by label; {} for anything that is no such table. Label 0 is background and has no organ."""
    data = content.encode() if isinstance(content, str) else bytes(content)
    try:
        root = ElementTree.fromstring(data.strip(b"\0 \n\t\r"))
    except ElementTree.ParseError:
        return {}
    entries = ((entry.get("Key", ""), (entry.text or "").strip()) for entry in root.iter("Label"))
    return {int(key): name for key, name in entries if key.isdecimal() and name and int(key) > 0}


def label_colour(label: int) -> tuple[float, float, float]:
    """A colour (red, green, blue), 0 to 1; neighbouring labels are far apart on the colour circle."""
    hue = label * GOLDEN_RATIO % 1
    return colorsys.hsv_to_rgb(hue, (0.85, 0.6, 1.0)[label % 3], (0.95, 1.0, 0.75)[label // 3 % 3])
