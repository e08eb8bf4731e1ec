"""`.seg.nrrd` is read by 3D Slicer itself, as PyPI has it (optional: pip install slicer-core)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from made_scans import CENTRES_MM, GEOMETRIES, ball_labels, write_series

from continual_segment.clinic.formats import Labelled, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.files import read_source
from continual_segment.organs import find_organ

IDS = {name: find_organ(name).id for name in CENTRES_MM}
IN_SLICER = """
import json
import sys

import numpy as np
from slicer import vtkMRMLScene, vtkMRMLSegmentationNode, vtkMRMLSegmentationStorageNode
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkCommonMath import vtkMatrix4x4

scene, found = vtkMRMLScene(), {}
for kind in (vtkMRMLSegmentationNode, vtkMRMLSegmentationStorageNode):
    scene.RegisterNodeClass(kind())
node = scene.AddNewNodeByClass("vtkMRMLSegmentationNode")
storage = scene.AddNewNodeByClass("vtkMRMLSegmentationStorageNode")
storage.SetFileName(sys.argv[1])
assert storage.ReadData(node)
segments = node.GetSegmentation()
for number in range(segments.GetNumberOfSegments()):
    segment, matrix = segments.GetNthSegment(number), vtkMatrix4x4()
    image = segment.GetRepresentation("Binary labelmap")
    image.GetImageToWorldMatrix(matrix)
    to_world = np.array([[matrix.GetElement(row, column) for column in range(4)] for row in range(4)])
    voxels = vtk_to_numpy(image.GetPointData().GetScalars()).reshape(image.GetDimensions()[::-1])
    z, y, x = np.nonzero(voxels == segment.GetLabelValue())
    first = image.GetExtent()[::2]
    place = to_world @ [x.mean() + first[0], y.mean() + first[1], z.mean() + first[2], 1]
    found[segment.GetName()] = [len(z), *place[:3]]
print(json.dumps(found))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("slicer_core") is None,
    reason="3D Slicer's libraries are not installed (pip install slicer-core)",
)
@pytest.mark.parametrize("geometry", ["axial", "oblique"])
def test_slicer_finds_every_organ_in_its_place_and_size(tmp_path, geometry):
    write_series(tmp_path / "series", GEOMETRIES[geometry])
    source = read_source(tmp_path / "series")
    labels = ball_labels(source.on_grid.voxels, source.grid, IDS)
    job = Job("case", tmp_path / "series", tmp_path / "out", alone=False)
    job.folder.mkdir()
    write_format("seg.nrrd", job.folder, Labelled(job, source, labels, nested=False))
    # a process of its own: its ITK and SimpleITK's do not go together
    command = [sys.executable, "-c", IN_SLICER, str(tmp_path / "out" / "case.seg.nrrd")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found.keys() == CENTRES_MM.keys()
    for name, (left, posterior, superior) in CENTRES_MM.items():
        voxels, *place = found[name]
        assert voxels == np.count_nonzero(labels.voxels == IDS[name])
        assert place == pytest.approx([-left, -posterior, superior], abs=1.5)
