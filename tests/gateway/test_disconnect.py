"""A client that hangs up stops both models."""

import pytest

from tests.helpers.gateway import Gateway, GatewayFactory, assert_error, eventually, holding


@pytest.mark.parametrize("writer", ["draft", "target"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 2])
async def test_disconnect_cancels_the_generation(
    gateway: Gateway, writer: str, stream: bool, at: int
) -> None:
    fakes = gateway.fakes
    async with gateway.held(at, model=f"semspec-demo:{writer}", stream=stream) as running:
        assert fakes.num_writing == 1
        await running.hang_up()
        await eventually(lambda: fakes.num_writing == 0)
    interrupted = f'semspec_gateway_generations_total{{status="interrupted",strategy="{writer}"}}'
    await gateway.metric_becomes(interrupted, 1)
    assert await gateway.metric("semspec_gateway_generations_in_flight") == 0
    assert gateway.app.state.admission.num_running == 0


async def test_disconnect_cancels_every_choice_and_what_is_drafted_ahead(gateway: Gateway) -> None:
    drafter = gateway.fakes.drafter
    request = gateway.chat(n=4, stream=True, semspec={"gamma": 2})
    async with holding(drafter, 4, request) as running:
        await eventually(lambda: drafter.num_writing == 4)
        running.cancel()
        await eventually(lambda: gateway.fakes.num_writing == 0)


async def test_deadline_ends_a_generation(start_gateway: GatewayFactory) -> None:
    gateway = await start_gateway(generation_deadline_s=0.05)
    gateway.fakes.target.pause_at = 0
    assert_error(await gateway.chat(model="semspec-demo:target"), 504, code="timeout")
    assert gateway.fakes.num_writing == 0
