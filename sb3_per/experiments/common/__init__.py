"""Shared by all experiments: command lines, devices, processes, Ray, tables and figures."""
