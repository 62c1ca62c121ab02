"""The pages of the sample project."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("order/<int:number>/<str:end>/", views.order),
    path("state/<str:result>/", views.state),
    path("watch/<int:number>/", views.watch),
    path("progress/<int:number>/", views.progress),
]
