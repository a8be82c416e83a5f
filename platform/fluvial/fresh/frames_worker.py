"""
The process in which the functions of pipelines are called for a server, with DataFrames of the server's Sail.

It is started by :mod:`fluvial.fresh.frames` as `python -m fluvial.fresh.frames_worker`, with JSON in its first
argument: the project. What is to be made comes on stdin, and on stdout goes out whether it is.
"""

import json
import signal
import sys
from pathlib import Path

from fluvial.errors import FluvialError
from fluvial.fresh.marts import Call
from fluvial.query import jail
from fluvial.query.frames import Frame, own_pipes, received, write_frame, write_json
from fluvial.query.made_frames import OtherAnswerError, OwnFrames
from fluvial.tables.declare.project import load_project


def main() -> None:
    """
    Call functions until there is nothing more to make.
    """
    # What a terminal sends to all of its processes is the server's to judge.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jail.end_with_parent()
    source, out = own_pipes()
    declarations = None
    frames = OwnFrames()
    for _, body in received(source):
        asked = json.loads(body)
        try:
            if declarations is None:
                declarations = load_project(json.loads(sys.argv[1])["project"])
            call = Call.of(asked["call"], declarations)
            frames.write_at(Path(asked["socket"]), asked["name"], call, asked["statements"], Path(asked["path"]))
        except FluvialError as error:
            is_other = isinstance(error, OtherAnswerError)
            write_json(out, Frame.REFUSED, {"message": str(error), "is_other": is_other})
            continue
        write_frame(out, Frame.END)


if __name__ == "__main__":
    main()
