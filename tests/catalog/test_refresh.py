"""`orch offers refresh` against a server of our own that answers as AWS's documents say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from kit.support import Folder, Said

EC2 = "http://ec2.amazonaws.com/doc/2016-11-15/"


@dataclass
class Cloud:
    """What the fake cloud knows, and what it was asked. `refuse`: the error it answers with, if any."""

    url: str = ""
    refuse: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)

    def zones(self, region: str) -> str:
        rows = {
            "us-east-1": [("us-east-1a", "use1-az4", "us-east-1"), ("us-east-1b", "use1-az6", "us-east-1")],
            "us-west-2": [
                ("us-west-2a", "usw2-az1", "us-west-2"),
                ("us-west-2-lax-1a", "usw2-lax1-az1", "us-west-2-lax-1"),
            ],
        }[region]
        items = "".join(
            f"<item><zoneName>{name}</zoneName><zoneId>{zone}</zoneId><regionName>{region}</regionName>"
            f"<networkBorderGroup>{border}</networkBorderGroup><zoneState>available</zoneState></item>"
            for name, zone, border in rows
        )
        return f"<availabilityZoneInfo>{items}</availabilityZoneInfo>"

    def offerings(self, region: str, token: str) -> str:
        """Two pages in us-east-1."""
        rows, more = {
            ("us-east-1", ""): ([("p5.48xlarge", "use1-az4")], "page-2"),
            ("us-east-1", "page-2"): ([("p5.48xlarge", "use1-az6"), ("m7i.large", "use1-az4")], ""),
            ("us-west-2", ""): ([("m7i.large", "usw2-az1"), ("m7i.large", "usw2-lax1-az1")], ""),
        }[region, token]
        items = "".join(
            f"<item><instanceType>{name}</instanceType><locationType>availability-zone-id</locationType>"
            f"<location>{zone}</location></item>"
            for name, zone in rows
        )
        following = f"<nextToken>{more}</nextToken>" if more else ""
        return f"<instanceTypeOfferingSet>{items}</instanceTypeOfferingSet>{following}"

    def spot(self, region: str) -> str:
        rows = {
            "us-east-1": [
                ("p5.48xlarge", "us-east-1a", "20.100000", "2026-01-02T03:00:00.000Z"),
                ("p5.48xlarge", "us-east-1a", "19.900000", "2026-01-02T02:00:00.000Z"),
            ],
            "us-west-2": [("m7i.large", "us-west-2a", "0.031000", "2026-01-02T03:00:00.000Z")],
        }[region]
        items = "".join(
            f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{price}</spotPrice><timestamp>{when}</timestamp>"
            f"<availabilityZone>{zone}</availabilityZone></item>"
            for name, zone, price, when in rows
        )
        return f"<spotPriceHistorySet>{items}</spotPriceHistorySet><nextToken></nextToken>"

    def products(self, region: str) -> list[str]:
        rows = {
            "us-east-1": [
                ("p5.48xlarge", "55.0400000000"),
                ("p5.48xlarge", "0.0000000000"),
                ("m7i.large", "0.1008"),
            ],
            "us-west-2": [("m7i.large", "0.1008"), ("z9.large", "0.2")],
            "us-west-2-lax-1": [("m7i.large", "0.121")],
        }.get(region, [])
        return [_product(name, region, price) for name, price in rows]


def _product(name: str, region: str, price: str) -> str:
    dimension = {"unit": "Hrs", "beginRange": "0", "endRange": "Inf", "pricePerUnit": {"USD": price}}
    attributes = {"instanceType": name, "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared"}
    return json.dumps(
        {
            "product": {"productFamily": "Compute Instance", "attributes": attributes, "sku": "S1"},
            "serviceCode": "AmazonEC2",
            "terms": {
                "OnDemand": {
                    "S1.JRTCKXETXF": {
                        "sku": "S1",
                        "termAttributes": {},
                        "priceDimensions": {"S1.JRTCKXETXF.6YS6EN2CT7": dimension},
                    }
                }
            },
            "version": "20260101000000",
        }
    )


def _handler(cloud: Cloud) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
            scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/", self.headers["Authorization"])
            region = scope[1] if scope else ""
            if "X-Amz-Target" in self.headers:
                self.price_list(json.loads(body))
            else:
                self.ec2({key: values[0] for key, values in parse_qs(body).items()}, region)

        def price_list(self, request: dict[str, object]) -> None:
            wanted = {each["Field"]: each["Value"] for each in request["Filters"]}  # type: ignore[attr-defined,index]
            cloud.asked.append(("GetProducts", wanted["regionCode"]))
            found = cloud.products(wanted["regionCode"])
            start = int(str(request.get("NextToken", 0)))
            page: dict[str, object] = {"FormatVersion": "aws_v1", "PriceList": found[start : start + 2]}
            if start + 2 < len(found):
                page["NextToken"] = str(start + 2)
            self.answer(200, "application/x-amz-json-1.1", json.dumps(page))

        def ec2(self, request: dict[str, str], region: str) -> None:
            action = request["Action"]
            cloud.asked.append((action, region))
            if cloud.refuse:
                error = f"<Error><Code>{cloud.refuse}</Code><Message>no entry</Message></Error>"
                self.answer(
                    401, "text/xml", f"<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>"
                )
                return
            content = {
                "DescribeRegions": lambda: (
                    "<regionInfo>"
                    + "".join(
                        f"<item><regionName>{name}</regionName></item>" for name in ("us-east-1", "us-west-2")
                    )
                    + "</regionInfo>"
                ),
                "DescribeAvailabilityZones": lambda: cloud.zones(region),
                "DescribeInstanceTypeOfferings": lambda: cloud.offerings(
                    region, request.get("NextToken", "")
                ),
                "DescribeSpotPriceHistory": lambda: cloud.spot(region),
            }[action]()
            name = f"{action}Response"
            text = f'<{name} xmlns="{EC2}"><requestId>r</requestId>{content}</{name}>'
            self.answer(200, "text/xml", text)

        def answer(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    return Handler


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    known = Cloud()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(known))
    known.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield known
    server.shutdown()
    server.server_close()
    thread.join()


def environment(folder: Path, url: str, *, keys: bool = True) -> dict[str, str]:
    """No account of this machine is read: neither files nor the metadata service of an instance."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(folder / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "none"),
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE" if keys else "",
        "AWS_SECRET_ACCESS_KEY": "secret" if keys else "",
        "AWS_MAX_ATTEMPTS": "1",
        "ORCHCTL_CATALOG": str(folder / "user"),
    }


def refresh(folder: Path, url: str, *words: str, keys: bool = True) -> Said:
    return Folder(folder).orch("offers", "refresh", *words, env=environment(folder, url, keys=keys))


def rows(folder: Path) -> list[str]:
    lines = (folder / "user" / "prices-aws.csv").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")][1:]


def test_prices_and_zones_are_fetched_and_used_from_then_on(tmp_path: Path, cloud: Cloud) -> None:
    said = refresh(tmp_path, cloud.url)
    assert (said.code, said.err) == (0, "")
    assert "aws: 5 offers" in said.out
    assert rows(tmp_path) == [
        "m7i.large,us-east-1,0.1008,use1-az4",
        "m7i.large,us-west-2,0.1008,usw2-az1:0.031",
        "m7i.large,us-west-2,0.121,usw2-lax1-az1",
        "p5.48xlarge,us-east-1,55.04,use1-az4:20.1 use1-az6",
    ]
    (tmp_path / "fleet.yml").write_text(
        'type: fleet\nname: probe\nnodes: 1\nresources: {gpu: "H100:8"}\nbackends: [aws]\n'
    )
    listed = Folder(tmp_path).orch("offers", "fleet.yml", "--json", env=environment(tmp_path, cloud.url)).json
    assert [offer["zone"] for offer in listed["fleets"][0]["offers"]] == ["use1-az4", "use1-az6"]
    assert listed["sources"][0]["refreshed"] is True
    assert listed["sources"][0]["source"] == "AWS Price List and EC2 APIs"


def test_a_fetched_region_has_nothing_that_the_account_did_not_tell(tmp_path: Path, cloud: Cloud) -> None:
    assert refresh(tmp_path, cloud.url, "--region", "us-west-2").code == 0
    (tmp_path / "fleet.yml").write_text(
        "type: fleet\nname: probe\nnodes: 1\ninstance_types: [g6.12xlarge]\nbackends: [aws]\n"
    )
    listed = Folder(tmp_path).orch("offers", "fleet.yml", "--json", env=environment(tmp_path, cloud.url)).json
    regions = {offer["region"] for offer in listed["fleets"][0]["offers"]}
    assert "us-west-2" not in regions
    assert {"us-east-1", "eu-west-1"} <= regions


def test_each_region_and_local_zone_is_asked_for_its_prices_once(tmp_path: Path, cloud: Cloud) -> None:
    refresh(tmp_path, cloud.url)
    asked = [region for action, region in cloud.asked if action == "GetProducts"]
    assert sorted(set(asked)) == ["us-east-1", "us-west-2", "us-west-2-lax-1"]
    assert len(asked) <= 4  # one page more


def test_one_region_leaves_the_others_as_they_were(tmp_path: Path, cloud: Cloud) -> None:
    for _ in range(2):
        assert refresh(tmp_path, cloud.url, "aws", "--region", "us-west-2").code == 0
    text = (tmp_path / "user" / "prices-aws.csv").read_text()
    assert text.count("; other regions: late 2025 or newer") == 1
    assert "m7i.large,us-west-2,0.121,usw2-lax1-az1" in text
    assert "p5.48xlarge,us-west-2" not in text
    assert "p5.48xlarge,us-east-1,55.04," in text
    assert ("DescribeSpotPriceHistory", "us-east-1") not in cloud.asked


def test_a_region_the_account_does_not_have_is_told(tmp_path: Path, cloud: Cloud) -> None:
    said = refresh(tmp_path, cloud.url, "--region", "eu-west-9")
    assert said.code == 5
    assert "this AWS account has no region eu-west-9" in said.err
    assert not (tmp_path / "user").exists()


@pytest.mark.parametrize(
    ("code", "summary"),
    [("AuthFailure", "AWS refused the credentials"), ("InternalFoo", "AWS refused a request for prices")],
)
def test_a_refusal_is_told_with_what_aws_said(tmp_path: Path, cloud: Cloud, code: str, summary: str) -> None:
    cloud.refuse = code
    said = refresh(tmp_path, cloud.url)
    assert said.code == 5
    assert f"error: {summary}" in said.err
    assert f"DescribeRegions: {code}: no entry" in said.err


def test_without_a_network_it_fails_clearly(tmp_path: Path, cloud: Cloud) -> None:
    unused = "http://127.0.0.1:9"
    said = refresh(tmp_path, unused)
    assert said.code == 5
    assert "error: AWS cannot be reached" in said.err
    assert "those at hand stay in use" in said.err
    assert "Traceback" not in said.err


def test_without_credentials_it_fails_clearly(tmp_path: Path, cloud: Cloud) -> None:
    said = refresh(tmp_path, cloud.url, keys=False)
    assert said.code == 5
    assert "there are no AWS credentials" in said.err
    assert cloud.asked == []


def test_a_profile_that_does_not_exist_is_told(tmp_path: Path, cloud: Cloud) -> None:
    said = refresh(tmp_path, cloud.url, "--profile", "nobody")
    assert said.code == 5
    assert "nobody" in said.err
    assert cloud.asked == []


def test_without_the_sdk_the_extra_to_install_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['boto3'] = None; sys.argv = ['orch', 'offers', 'refresh'];"
        "from orch.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment(tmp_path, "http://127.0.0.1:9")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr.startswith("error ORCH306: AWS's SDK is not installed\n")
    assert "in a checkout: pip install -e '.[aws]'" in done.stderr


def test_backends_without_a_refresh_are_named(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("offers", "refresh", "gcp")
    assert said.code == 2
    assert "prices of gcp cannot be refreshed" in said.err
    assert "`azure`" in said.err


def test_a_mistyped_backend_gets_a_guess(tmp_path: Path) -> None:
    said = Folder(tmp_path).orch("offers", "refresh", "awz")
    assert said.code == 2
    assert "did you mean 'aws'?" in said.err


def test_what_is_at_hand_is_listed_without_any_cloud_sdk(tmp_path: Path) -> None:
    code = (
        "import sys, orch.offers.search;"
        "print([name for name in ('boto3', 'botocore', 'pulumi') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
