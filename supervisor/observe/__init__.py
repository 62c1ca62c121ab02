"""What the supervisor publishes about the fleet and itself.

Metrics, the fleet report, systemd messages, the log stream.

It reads state and must not change it: no decision depends on this package.
"""
