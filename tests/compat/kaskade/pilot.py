"""
Runs kaskade without a terminal and prints what its table shows, in kaskade's own environment: `ROWS WORD…`.

The words are those of its command line. The program ends by itself once the table has that many rows.
"""

import asyncio
import json
import sys

from kaskade.main import cli
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import DataTable

rows_wanted, *words = sys.argv[1:]
SECONDS_MAX = 60
run = App.run


async def look(pilot: Pilot) -> None:
    table = pilot.app.query_one(DataTable)
    for _ in range(SECONDS_MAX * 5):
        if table.row_count >= int(rows_wanted):
            break
        await asyncio.sleep(0.2)
    print(json.dumps([[str(cell) for cell in table.get_row(key)] for key in table.rows]), file=sys.__stdout__)
    pilot.app.exit()


App.run = lambda app: run(app, headless=True, size=(160, 60), auto_pilot=look)
cli(words)
