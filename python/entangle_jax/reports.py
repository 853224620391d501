"""What a report of `audit` is made of. Use these classes in type annotations.

>>> from entangle_jax import audit, reports, testing
>>> report = audit(lambda token: testing.write(token, 1.0), testing.slot(0), writes=[testing.WRITE_TARGET])
>>> isinstance(report, reports.Report), isinstance(report.calls[0], reports.Call)
(True, True)
"""

from entangle_jax._audit_report import Call, Copy, Entangle, Lost, Moved, Object, Race, RaceError, Report, Source

__all__ = ["Call", "Copy", "Entangle", "Lost", "Moved", "Object", "Race", "RaceError", "Report", "Source"]
