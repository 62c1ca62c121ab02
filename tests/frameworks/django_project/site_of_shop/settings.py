"""Settings of the sample project: its database is the one that SHOP_DSN names."""

from __future__ import annotations

import os

import django
from psycopg.conninfo import conninfo_to_dict

_address = conninfo_to_dict(os.environ["SHOP_DSN"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _address["dbname"],
        "USER": _address["user"],
        "HOST": _address["host"],
        "PORT": _address.get("port", 5432),
        "CONN_MAX_AGE": 60,
    }
}
SECRET_KEY = "of a sample project, and of no use elsewhere"
ALLOWED_HOSTS = ["*"]
DEBUG_PROPAGATE_EXCEPTIONS = True
USE_TZ = True
ROOT_URLCONF = "site_of_shop.urls"
STATIC_URL = "/static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "jobherd.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
TASKS = {
    "default": {
        "BACKEND": "jobherd.django.Backend",
        "QUEUES": ["default", "media"],
        "OPTIONS": {"max_attempts": 3, "tasks": {"shop.tasks.fail": {"max_attempts": 1}}, "dashboard": "/jobherd"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
if django.VERSION < (6, 0):
    INSTALLED_APPS.append("django_tasks")
elif django.VERSION < (6, 1):
    TASKS["default"]["OPTIONS"]["tasks"]["shop.tasks.stuck"] = {"max_attempts": 1, "timeout": "1s"}
