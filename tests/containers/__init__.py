"""Checks of deployments: the files of `deploy/` in real containers and under a real systemd.

They need root, and a machine that can start dockerd. They are scripts, not tests that pytest
collects: they install packages of Debian and take several minutes.
"""
