"""Organ names inside a NIfTI header.

A label table in the XML of Connectome Workbench, which TotalSegmentator writes as well, so existing viewers
show names and colours.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from continual_segment.files.grids import LARGEST_LABEL
from continual_segment.files.organ_colours import label_colour

LABEL = re.compile(r"[0-9]{1,5}")


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
    return {int(key): name for key, name in entries if name and is_label(key)}


def is_label(text: str) -> bool:
    """Whether a text is a number that a voxel can have: sizes of arrays follow from it."""
    return bool(LABEL.fullmatch(text)) and 0 < int(text) <= LARGEST_LABEL
