"""Key servers for the tests of key services, and an environment that leads to nothing else."""

from tests.support.kms.server_fixtures import bao, bao_running, bare_environment, moto, moto_running

__all__ = ["bao", "bao_running", "bare_environment", "moto", "moto_running"]  # fixtures
