"""Deployments that were seen: the files of `deploy/` in real containers and under a real systemd.

As root, on a machine that can start dockerd. They are scripts, not tests that pytest collects: they
install packages of Debian and take some minutes.
"""
