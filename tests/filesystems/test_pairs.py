"""Stores and cache roots on real filesystems."""

from __future__ import annotations

import pytest

from kstore.local.link import LinkMode
from tests.filesystems.conformance import StoreAndCacheRoot

pytestmark = pytest.mark.privileged

NO_CLONES = "no reflink: Operation not supported"
OTHER_DEVICE = "no reflink: Invalid cross-device link; no hardlink: Invalid cross-device link"


class TestExt4(StoreAndCacheRoot):
    store_on = "ext4"
    mode = LinkMode.HARDLINK
    why = NO_CLONES


class TestExt4WithCoarseTimes(StoreAndCacheRoot):
    store_on = "ext4 with coarse times"
    mode = LinkMode.HARDLINK
    why = NO_CLONES
    keeps_stamps = False


class TestXfs(StoreAndCacheRoot):
    store_on = "xfs"
    mode = LinkMode.REFLINK


class TestBtrfs(StoreAndCacheRoot):
    store_on = "btrfs"
    mode = LinkMode.REFLINK


class TestTmpfs(StoreAndCacheRoot):
    store_on = "tmpfs"
    mode = LinkMode.HARDLINK
    why = NO_CLONES


class TestOverlay(StoreAndCacheRoot):
    store_on = "overlay"
    mode = LinkMode.HARDLINK
    why = NO_CLONES


@pytest.mark.slow
class TestTwoOfXfs(StoreAndCacheRoot):
    store_on = "xfs"
    root_on = "xfs"
    mode = LinkMode.COPY
    why = OTHER_DEVICE


class TestExt4ToTmpfs(StoreAndCacheRoot):
    store_on = "ext4"
    root_on = "tmpfs"
    mode = LinkMode.COPY
    why = OTHER_DEVICE


class TestExt4ToAContainer(StoreAndCacheRoot):
    store_on = "ext4"
    root_on = "overlay"
    mode = LinkMode.COPY
    why = OTHER_DEVICE


@pytest.mark.slow
class TestBtrfsToCoarseTimes(StoreAndCacheRoot):
    store_on = "btrfs"
    root_on = "ext4 with coarse times"
    mode = LinkMode.COPY
    why = OTHER_DEVICE
    keeps_stamps = False
