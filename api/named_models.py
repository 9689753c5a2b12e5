"""The entries of a server's views that are models for clients: all but chains that serve, draft or guess for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_named(application: Mapping[str, Any]) -> bool:
    """Return whether clients can name an application, by its entry in ``/admin/cluster`` or in ``ps``.

    Servers of earlier releases do not report the two fields.
    """
    return not (application.get("variant_of") or application.get("drafts_for"))
