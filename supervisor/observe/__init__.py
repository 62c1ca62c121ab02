"""What the supervisor publishes about its children and itself.

Metrics, the fleet report, systemd messages, the log stream.

It reads state and must not change it: no decision depends on this package.
"""
