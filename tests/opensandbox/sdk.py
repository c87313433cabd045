# Drives a sandbox's whole life by the vendor's SDK: sdk.py direct|proxy DOMAIN IMAGE. Any surprise is an exception.
import asyncio
import sys
from datetime import timedelta

from opensandbox import Sandbox
from opensandbox.config import ConnectionConfig
from opensandbox.models.execd import RunCommandOpts


async def main(access: str, domain: str, image: str) -> None:
    config = ConnectionConfig(domain=domain, use_server_proxy=access == "proxy")
    sandbox = await Sandbox.create(
        image,
        entrypoint=["tail", "-f", "/dev/null"],
        timeout=timedelta(minutes=5),
        metadata={"berth.test/of": "sdk"},
        resource={"cpu": "500m", "memory": "64Mi"},
        env={"A": "b"},
        connection_config=config,
    )
    try:
        assert (await sandbox.get_info()).status.state == "Running"
        assert await sandbox.is_healthy()
        await commands(sandbox)
        before = (await sandbox.get_info()).expires_at
        await sandbox.renew(timedelta(minutes=30))
        assert (await sandbox.get_info()).expires_at > before
        await sandbox.pause()
        assert (await sandbox.get_info()).status.state == "Paused"
        sandbox = await Sandbox.resume(sandbox.id, connection_config=config)
        assert (await sandbox.commands.run("echo thawed")).logs.stdout[0].text.strip() == "thawed"
    finally:
        await sandbox.kill()
        await sandbox.close()


async def commands(sandbox: Sandbox) -> None:
    done = await sandbox.commands.run("echo one; echo two >&2; echo $A")
    assert done.exit_code == 0 and done.error is None and done.complete is not None, done
    assert [line.text.strip() for line in done.logs.stdout] == ["one", "b"], done
    assert [line.text.strip() for line in done.logs.stderr] == ["two"], done
    failed = await sandbox.commands.run("exit 7")
    assert failed.exit_code == 7 and failed.error.value == "7", failed
    placed = await sandbox.commands.run("pwd", opts=RunCommandOpts(working_directory="/etc"))
    assert placed.logs.stdout[0].text.strip() == "/etc", placed

    started = await sandbox.commands.run("echo begun; sleep 1000", opts=RunCommandOpts(background=True))
    status = await sandbox.commands.get_command_status(started.id)
    assert status.running and status.exit_code is None and status.started_at, status
    for _ in range(100):
        logs = await sandbox.commands.get_background_command_logs(started.id)
        if logs.content:
            break
        await asyncio.sleep(0.1)
    assert logs.content == "begun\n" and logs.cursor == 6, logs
    assert (await sandbox.commands.get_background_command_logs(started.id, cursor=6)).content == ""
    await sandbox.commands.interrupt(started.id)
    for _ in range(100):
        status = await sandbox.commands.get_command_status(started.id)
        if not status.running:
            break
        await asyncio.sleep(0.1)
    assert status.exit_code == -1 and status.finished_at, status


asyncio.run(main(*sys.argv[1:]))
print("noticed nothing")
