"""A node answers every series once: in any order, from any sender, even if it is killed."""

from __future__ import annotations

import json
import logging
import random
import sqlite3
import urllib.error
import urllib.request
from dataclasses import replace
from io import BytesIO

import gdcm
import highdicom as hd
import pytest
from made_node import (
    SHORT,
    HereProcess,
    archive,
    config_for,
    echo,
    running,
    segment_balls,
    send,
    states,
    until,
)
from made_scans import AXIAL, compress, read_header, write_enhanced, write_series
from pydicom import dcmwrite
from pydicom.uid import ExplicitVRLittleEndian, ImplicitVRLittleEndian

from continual_segment.errors import ConfigError
from continual_segment.node.config import Destination, Limits
from continual_segment.node.queue import Queue
from continual_segment.node.receive import Receiver
from continual_segment.node.status import describe


def images(folder, made=SHORT, **values):
    return [read_header(path) for path in write_series(folder, made, **values)]


@pytest.fixture
def sent(tmp_path):
    """The slices of a patient in no order."""
    found = images(tmp_path / "sent")
    random.Random(0).shuffle(found)
    return found


def test_a_series_comes_back_as_a_segmentation_that_highdicom_reads(tmp_path, sent, caplog):
    caplog.set_level(logging.DEBUG)
    with archive() as (port, received), running(config_for(tmp_path, port)) as node:
        assert echo(node.address[1]) == 0
        assert set(send(node.address[1], sent)) == {0}
        until(node, lambda: states(node) == ["done"])
        shown = describe(node.store)
    (result,) = received
    segmentation = hd.seg.Segmentation.from_dataset(result)
    assert {segment.SegmentLabel for segment in segmentation.SegmentSequence} == {
        "liver",
        "spleen",
        "urinary_bladder",
    }
    assert result.StudyInstanceUID == sent[0].StudyInstanceUID
    assert result.PatientID == sent[0].PatientID
    for secret in ("Doe", "Jane", "SECRET-4711", sent[0].SeriesInstanceUID, sent[0].StudyInstanceUID):
        assert secret not in caplog.text + shown


def test_duplicates_are_ignored_and_a_late_slice_is_segmented_with_the_others(tmp_path, sent):
    process = HereProcess()
    sent.sort(key=lambda image: image.InstanceNumber)  # the first is missing at an end and leaves no gap
    with archive() as (port, received), running(config_for(tmp_path, port), process) as node:
        send(node.address[1], [*sent[1:], *sent[1:4]])
        until(node, lambda: states(node) == ["done"])
        assert send(node.address[1], sent[1:3]) == [0, 0]
        assert states(node) == ["done"]
        assert send(node.address[1], sent[:1]) == [0]
        assert states(node) == ["receiving"]
        until(node, lambda: states(node) == ["done"])
    assert len(process.jobs) == 2
    assert len({each.SOPInstanceUID for each in received}) == 2


def test_slices_that_come_while_their_series_is_segmented_make_the_result_obsolete(tmp_path, sent):
    def interrupted(*job):
        if len(process.jobs) == 1:
            assert send(node.address[1], sent[:1]) == [0]
        segment_balls(*job)

    process = HereProcess(interrupted)
    with archive() as (port, received), running(config_for(tmp_path, port), process) as node:
        send(node.address[1], sent[1:])
        until(node, lambda: states(node) == ["done"])
        assert len(list(node.store.results.iterdir())) == 1
    assert len(process.jobs) == 2
    assert len(received) == 1


def test_a_result_has_the_same_uids_however_often_it_is_computed(tmp_path, sent):
    uids = []
    for name in ("first", "second"):
        with archive() as (port, received), running(config_for(tmp_path / name, port)) as node:
            send(node.address[1], sent)
            until(node, lambda node=node: states(node) == ["done"])
        uids.append([(each.SOPInstanceUID, each.SeriesInstanceUID) for each in received])
    assert uids[0] == uids[1]
    assert len(uids[0]) == 1


@pytest.mark.parametrize("titles", [{"calling": "STRANGER"}, {"called": "OTHER"}])
def test_a_forbidden_ae_title_is_rejected(tmp_path, titles):
    with running(config_for(tmp_path, 1, calling_ae_titles=("SCANNER",))) as node:
        assert echo(node.address[1], **titles) is None
        assert echo(node.address[1]) == 0


def test_a_forbidden_address_is_disconnected(tmp_path):
    with running(config_for(tmp_path, 1, addresses=("10.1.0.0/16",))) as node:
        assert echo(node.address[1]) is None


def test_compressed_and_enhanced_images_are_received(tmp_path):
    paths = write_series(tmp_path / "sent", SHORT)
    for path in paths:
        compress(path, gdcm.TransferSyntax.JPEG2000Lossless)
    enhanced = read_header(write_enhanced(tmp_path / "enhanced.dcm", SHORT))
    enhanced.SeriesInstanceUID = "1.2.3"
    with archive() as (port, received), running(config_for(tmp_path, port)) as node:
        assert set(send(node.address[1], [read_header(path) for path in paths])) == {0}
        assert send(node.address[1], [enhanced]) == [0]
        until(node, lambda: states(node) == ["done", "done"])
    assert len(received) == 2


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRLittleEndian])
def test_results_are_sent_in_the_syntax_that_the_destination_accepts(tmp_path, sent, syntax):
    with archive(syntaxes=[syntax]) as (port, received), running(config_for(tmp_path, port)) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["done"])
    assert [each.file_meta.TransferSyntaxUID for each in received] == [syntax]


def test_every_destination_gets_its_formats(tmp_path, sent):
    with archive() as (one, first), archive() as (two, second):
        config = config_for(tmp_path, one)
        contours = Destination("planning", "127.0.0.1", two, "ARCHIVE", ("rtstruct",))
        with running(replace(config, destinations=(*config.destinations, contours))) as node:
            send(node.address[1], sent)
            until(node, lambda: states(node) == ["done"])
    assert [each.Modality for each in first] == ["SEG"]
    assert [each.Modality for each in second] == ["RTSTRUCT"]


def test_a_destination_that_fails_is_tried_again_and_then_given_up(tmp_path, sent):
    with archive(answers=[0xA700, 0xC000]) as (port, received):
        config = config_for(tmp_path, port)
        with running(config) as node:
            send(node.address[1], sent)
            until(node, lambda: states(node) == ["done"])
        assert len(received) == 1
    unreachable = replace(config, folder=tmp_path / "other", retries=replace(config.retries, send=2))
    with running(unreachable) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["failed"])
        assert "archive" in node.queue.all_series()[0].reason


def test_a_disk_that_is_full_for_a_while_costs_time_alone(tmp_path, sent, monkeypatch, caplog):
    """The queue cannot be written when a series is claimed, nor when its failure is recorded."""
    full = iter(range(2))

    def or_full(method):
        def call(self, *given):
            if next(full, None) is not None:
                raise sqlite3.OperationalError("database or disk is full")
            return method(self, *given)

        return call

    for name in ("claim", "settle"):
        monkeypatch.setattr(Queue, name, or_full(getattr(Queue, name)))
    with archive() as (port, received), running(config_for(tmp_path, port)) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["done"])
    assert len(received) == 1
    assert caplog.text.count("disk is full") == 2


def test_a_failure_that_could_not_be_recorded_is_recorded_later(tmp_path, sent, monkeypatch):
    def broken(*job):
        raise MemoryError

    retry, full = Queue.retry, iter(range(1))

    def or_full(self, *given):
        if next(full, None) is not None:
            raise sqlite3.OperationalError("database or disk is full")
        return retry(self, *given)

    monkeypatch.setattr(Queue, "retry", or_full)
    with archive() as (port, received), running(config_for(tmp_path, port), HereProcess(broken)) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["failed"])
    assert next(full, None) is None  # the disk was full once
    assert not received


def test_a_series_that_fails_is_tried_again_and_then_set_aside(tmp_path, sent):
    def broken(*job):
        raise MemoryError("Doe^Jane")

    process = HereProcess(broken)
    with archive() as (port, received), running(config_for(tmp_path, port), process) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["failed"])
        assert len(process.jobs) == node.config.retries.segment
        assert "Doe" not in node.queue.all_series()[0].reason
        process.function = segment_balls
        assert node.queue.retry_failed() == 1
        until(node, lambda: states(node) == ["done"])
    assert len(received) == 1


def test_a_series_with_a_gap_is_set_aside_until_the_missing_slices_come(tmp_path):
    every = images(tmp_path / "sent")
    missing = range(3, 7)
    process = HereProcess()
    with archive() as (port, received), running(config_for(tmp_path, port), process) as node:
        send(node.address[1], [each for number, each in enumerate(every) if number not in missing])
        until(node, lambda: states(node) == ["failed"])
        assert len(process.jobs) == 1  # the same slices would fail again
        send(node.address[1], [every[number] for number in missing])
        until(node, lambda: states(node) == ["done"])
    assert len(received) == 1


def test_rules_choose_and_what_no_rule_matches_is_skipped(tmp_path, sent):
    scout = images(tmp_path / "scout", SHORT.without(*range(2, 9)), SeriesInstanceUID="1.2.3")
    head = images(tmp_path / "head", SeriesInstanceUID="1.2.4", SeriesDescription="HEAD 5.0")
    with archive() as (port, received):
        config = config_for(tmp_path, port)
        (rule,) = config.rules
        process = HereProcess()
        rules = (replace(rule, description=("body *",), thickness_mm=(0.0, 9.5)),)
        with running(replace(config, rules=rules), process) as node:
            for each in (scout, head, sent):
                send(node.address[1], each)
            until(node, lambda: states(node) == ["done", "skipped", "skipped"])
    assert len(process.jobs) == len(received) == 1


def test_a_rule_picks_one_of_several_stacks_in_a_series_which_is_set_aside_without_a_rule(tmp_path):
    shorter = SHORT.without(8)
    phases = [*images(tmp_path / "one"), *images(tmp_path / "two", shorter, AcquisitionNumber=2)]
    with archive() as (port, received):
        for name, pick, state in (("picked", "most-slices", "done"), ("unpicked", None, "failed")):
            config = config_for(tmp_path / name, port)
            rules = (replace(config.rules[0], pick=pick),)
            with running(replace(config, rules=rules)) as node:
                assert set(send(node.address[1], phases)) == {0}
                until(node, lambda node=node, state=state: states(node) == [state])
    (result,) = received
    assert len(result.ReferencedSeriesSequence[0].ReferencedInstanceSequence) == SHORT.shape[0]


def test_own_results_and_other_kinds_of_objects_are_not_processed(tmp_path, sent):
    own = images(tmp_path / "own", Manufacturer="Continual Segment")
    with archive() as (port, received), running(config_for(tmp_path, port)) as node:
        assert send(node.address[1], own[:3]) == [0, 0, 0]
        assert states(node) == []
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["done"])
        assert send(node.address[1], received) == [None]  # no such presentation context
        assert states(node) == ["done"]


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("SeriesInstanceUID", "../../../etc/passwd"),
        ("SeriesInstanceUID", ""),
        ("SeriesInstanceUID", "1." + "2" * 100),
        ("StudyInstanceUID", None),
        ("SOPInstanceUID", None),
        ("SOPInstanceUID", "1.2.3.4"),
        ("SOPClassUID", "1.2.840.10008.5.1.4.1.1.4"),  # MR
    ],
)
def test_an_image_without_sound_uids_is_refused(tmp_path, sent, keyword, value):
    image = sent[0]
    with running(config_for(tmp_path, 1)) as node:
        event = FakeEvent(image)
        if value is None:
            delattr(image, keyword)
        else:
            image[keyword].value = value
        receiver = Receiver(node.config.limits, node.queue, node.store)
        assert receiver.answer(event) in (0xA900, 0xC000)
        assert states(node) == []
        assert not list((node.store.folder / "series").iterdir())


class FakeEvent:
    """A C-STORE whose request names other UIDs than its data set."""

    def __init__(self, image):
        class Peer:
            address, ae_title = "127.0.0.1", "SCANNER"

        self.image, self.assoc, self.request = image, self, self
        self.requestor = Peer()
        self.AffectedSOPClassUID, self.AffectedSOPInstanceUID = image.SOPClassUID, image.SOPInstanceUID

    def encoded_dataset(self):
        file = BytesIO()
        dcmwrite(file, self.image, enforce_file_format=False)
        return file.getvalue()


@pytest.mark.parametrize(
    "limits",
    [
        Limits(free_disk_mb=1.0, instances_per_minute=2),
        Limits(free_disk_mb=1.0, instances_per_series=2),
        Limits(free_disk_mb=1e12),
    ],
)
def test_what_exceeds_a_limit_is_refused(tmp_path, sent, limits):
    with running(replace(config_for(tmp_path, 1), limits=limits)) as node:
        found = send(node.address[1], sent[:4])
        assert found[-1] == 0xA700
        assert found.count(0) == (0 if limits.free_disk_mb > 1 else 2)


def test_a_huge_object_ends_the_connection_and_the_next_sender_is_served(tmp_path, sent):
    small = Limits(free_disk_mb=1.0, instance_mb=0.5)
    huge = read_header(write_enhanced(tmp_path / "huge.dcm", replace(AXIAL, shape=(120, 46, 50))))
    assert len(huge.PixelData) > 0.5 * 2**20
    with running(replace(config_for(tmp_path, 1), limits=small)) as node:
        assert send(node.address[1], [huge]) == [None]
        assert states(node) == []
        assert send(node.address[1], sent[:1]) == [0]


def test_the_health_page_gives_numbers_and_no_patient(tmp_path, sent):
    with archive() as (port, _), running(config_for(tmp_path, port)) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["done"])
        with urllib.request.urlopen(f"http://127.0.0.1:{node.page.server_port}") as page:
            found = json.load(page)
        assert found["ok"]
        assert found["series"] == {"done": 1}
        full = replace(node.config, limits=Limits(free_disk_mb=1e12))
        node.config = full
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"http://127.0.0.1:{node.page.server_port}")


def test_one_folder_has_one_node_and_a_used_port_is_an_error(tmp_path):
    config = config_for(tmp_path, 1)
    with running(config) as node:
        with pytest.raises(ConfigError, match="another node"), running(config):
            pass
        taken = config_for(tmp_path / "other", 1, port=node.address[1])
        with pytest.raises(ConfigError, match=str(node.address[1])), running(taken):
            pass


def test_files_of_finished_series_are_deleted_after_a_while(tmp_path, sent):
    with archive() as (port, received):
        config = config_for(tmp_path, port)
        config = replace(config, limits=replace(config.limits, keep_hours=0.0))
        with running(config) as node:
            send(node.address[1], sent)
            until(node, lambda: len(received) == 1 and states(node) == ["done"])
            node._clean_up()
            assert states(node) == []
            assert not list((node.store.folder / "series").iterdir())
            assert not list(node.store.results.iterdir())
