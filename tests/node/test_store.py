"""No file of a patient stays on the disk longer than the queue knows of it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from made_node import config_for, running, states

from continual_segment.node.queue import Queue, id_of
from continual_segment.node.store import Store

ID, OTHER = id_of("1.2.3"), id_of("1.2.4")


def put(store, series):
    """A slice and a result."""
    store.write(series, "slice", b"voxels")
    (store.results / f"{series}-1").mkdir()
    (store.results / f"{series}-1" / "case.seg.dcm").write_bytes(b"labels")


def files_of(store, series):
    return [path for path in store.folder.rglob("*") if series in str(path) and path.is_file()]


@pytest.fixture
def config(tmp_path):
    """Of a node whose folder has a finished series."""
    config = config_for(tmp_path, 1)
    config = replace(config, limits=replace(config.limits, keep_hours=0.0))
    store = Store(config.folder)
    store.make()
    put(store, ID)
    queue = Queue(store.queue)
    queue.add(ID, "slice", 1, "SCANNER")
    queue.settle(0)
    queue.finish(queue.claim(), [])
    queue.close()
    return config


@pytest.mark.parametrize("kind", [".seg.dcm", "slice.dcm"])
def test_a_series_whose_files_cannot_be_deleted_is_kept_and_deleted_later(config, monkeypatch, caplog, kind):
    caplog.set_level("INFO")
    unlink = os.unlink

    def refused(path, **options):
        if str(path).endswith(kind):
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, **options)

    with running(config) as node:
        with monkeypatch.context() as changed:
            changed.setattr(os, "unlink", refused)
            node._clean_up()
        assert states(node) == ["expired"]
        assert len(files_of(node.store, ID)) == 1  # what can be deleted is
        assert f"series {ID}: not deleted" in caplog.text
        assert "were deleted" not in caplog.text
        node._clean_up()
        assert states(node) == []
        assert files_of(node.store, ID) == []
        assert f"series {ID}: its files were deleted" in caplog.text


def test_a_start_deletes_slices_and_results_of_series_that_the_queue_does_not_have(config):
    store = Store(config.folder)
    put(store, OTHER)
    (store.results / "lost+found").mkdir()
    with running(config):
        assert files_of(store, OTHER) == []
        assert len(files_of(store, ID)) == 2
        assert (store.results / "lost+found").is_dir()


def test_a_node_starts_although_left_results_cannot_be_deleted(config, caplog):
    store = Store(config.folder)
    left = store.results / f"{OTHER}-1"
    left.symlink_to(config.folder.parent)  # which rmtree refuses to follow
    with running(config):
        assert str(left) in caplog.text
    assert config.folder.parent.is_dir()
