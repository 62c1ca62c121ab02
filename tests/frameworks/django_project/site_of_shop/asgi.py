"""The ASGI application: the dashboard at /jobherd, and Django everywhere else."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_of_shop.settings")

from django.core.asgi import get_asgi_application  # noqa: E402 - needs the settings

django_application = get_asgi_application()

from jobherd.django.dashboard import with_dashboard  # noqa: E402 - needs the applications

application = with_dashboard(django_application, path="/jobherd")
