"""Publishes the state of the supervisor and its children: metrics, fleet report, systemd messages, log.

It reads state and must not change it: no decision depends on this package.
"""
