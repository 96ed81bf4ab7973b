"""A sealed Kaggle and a sealed Colab on this machine: `python tools/kaggle_sim` plays the whole story, as `make
kaggle-sim` does.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kaggle_sim import accidents, colab, environment, kernels, sealed, story

BUILD = environment.root / "build" / "kaggle-sim"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kaggle_sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = parser.add_subparsers(dest="what", metavar="WHAT")
    tale = words.add_parser(
        "story", help="from an empty folder to submission.csv, fresh and chained; what is done without a word"
    )
    tale.add_argument(
        "--out", type=Path, default=BUILD / "story", help="the folder, emptied first; default: %(default)s"
    )
    pages = words.add_parser("colab-story", help="kaggle/colab/train on two machines of Colab with one Drive")
    pages.add_argument(
        "--out", type=Path, default=BUILD / "colab-story", help="the folder, emptied first; default: %(default)s"
    )
    one = words.add_parser("run", help="one kernel folder as a session of Kaggle")
    one.add_argument("kernel", type=Path, help="the folder with kernel-metadata.json")
    one.add_argument(
        "--datasets", type=Path, required=True, help="the folder that holds the kernel's sources by their slugs"
    )
    one.add_argument("--out", type=Path, required=True, help="where what the session leaves goes")
    one.add_argument(
        "--working-mib",
        type=int,
        default=512,
        help="what /kaggle/working can hold, which is 20 GB on Kaggle; default: %(default)s",
    )
    one.add_argument("--rerun", action="store_true", help="as a competition runs it again")
    one.add_argument("--interactive", action="store_true", help="the environment of Kaggle's editor")
    one.add_argument(
        "--gpu",
        action="append",
        choices=sorted(kernels.GPUS),
        help="a GPU that nvidia-smi tells of, with no driver behind it; may be repeated",
    )
    one.add_argument("--real-gpus", action="store_true", help="this machine's own GPUs")
    one.add_argument(
        "--untold", action="store_true", help="the kit is not told the limit, and the session is killed at it"
    )
    page = words.add_parser("colab", help="one notebook as a session of Colab")
    page.add_argument("notebook", type=Path)
    page.add_argument("--drive", type=Path, required=True, help="the folder that is Drive")
    page.add_argument(
        "--out", type=Path, required=True, help="where the page goes: the notebook with its outputs, and its journal"
    )
    mishaps = words.add_parser("accidents", help="what goes wrong, on purpose")
    mishaps.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of: {', '.join(a.name for a in accidents.ACCIDENTS)}; none: all"
    )
    mishaps.add_argument(
        "--wheels",
        type=Path,
        default=BUILD / "story" / "datasets",
        help="a folder with spectrakit-wheels; default: the story's",
    )
    mishaps.add_argument("--verbose", action="store_true", help="the log of each as well")
    for each in (tale, one, mishaps):
        each.add_argument(
            "--layout", choices=kernels.LAYOUTS, help="how inputs are mounted; the story takes both in turn"
        )
    for each in (tale, pages, one, page):
        each.add_argument(
            "--python",
            metavar="FILE",
            help="a Python of the platform's version, whose torch sessions take; default: on the path, else mine",
        )
    for each, limit_s in ((tale, 600), (pages, 600), (one, 120), (page, 120)):
        each.add_argument(
            "--limit", type=float, default=limit_s, help="seconds that a session lasts; default: %(default)s"
        )
    which = words.add_parser("python", help="the Python of a platform, and how it differs from the platform's own")
    which.add_argument("platform", choices=sorted(environment.ONLY))
    return parser


def play(names: list[str], wheels: Path, layout: str, verbose: bool) -> int:
    "Accidents as a table: what was done, what Kaggle would say, what the person reads."
    known = {accident.name: accident for accident in accidents.ACCIDENTS}
    if unknown := sorted(set(names) - set(known)):
        raise SystemExit(f"kaggle_sim: there is no accident {unknown[0]!r}. Choose among: {', '.join(known)}")
    if not (wheels / accidents.WHEELS).is_dir():
        raise SystemExit(f"kaggle_sim: {wheels / accidents.WHEELS} is not there. Play the story first: make kaggle-sim")
    wrong = 0
    for accident in [known[name] for name in names] or accidents.ACCIDENTS:
        done = accidents.play(accident, wheels, BUILD / "accidents" / accident.name, layout, not verbose)
        told = accidents.complaints(accident, done)
        wrong += bool(told)
        print(
            f"{accident.name}: {accident.what}\n  {done.verdict}, exit status {done.status}, "
            f"{done.seconds:.0f} s, {len(done.files())} files left\n"
            f"  reads: {accidents.last_words(done)}",
            *(f"  NOT AS IT SHOULD BE: {line}" for line in told),
            sep="\n",
            flush=True,
        )
    return bool(wrong)


def main() -> int:
    options = make_parser().parse_args(sys.argv[1:] or ["story"])
    try:
        if reason := sealed.why_not():
            raise sealed.NotPermitted(reason)
        if options.what == "story":
            story.tell(
                options.out.resolve(),
                options.limit,
                (options.layout,) * 2 if options.layout else kernels.LAYOUTS,
                python=environment.environment("kaggle", options.python),
            )
        elif options.what == "colab-story":
            python = environment.environment("colab", options.python)
            story.tell_colab(options.out.resolve(), options.limit, python=python)
        elif options.what == "accidents":
            return play(options.names, options.wheels, options.layout or "new", options.verbose)
        elif options.what == "python":
            found = environment.environment(options.platform)
            print(found.python, *(f"  differs: {line}" for line in found.differences), sep="\n")
        else:
            if options.what == "run":
                done = kernels.run_kernel(
                    options.kernel,
                    options.datasets,
                    options.out,
                    layout=options.layout or "new",
                    limit_s=options.limit,
                    tell_limit=not options.untold,
                    working_mib=options.working_mib,
                    rerun=options.rerun,
                    gpus=options.gpu,
                    real_gpus=options.real_gpus,
                    run_type="Interactive" if options.interactive else "Batch",
                    python=environment.environment("kaggle", options.python),
                )
            else:
                python = environment.environment("colab", options.python)
                done = colab.run_colab(
                    options.notebook, options.drive, options.out, limit_s=options.limit, python=python
                )
            print(
                f"--- {done.verdict} after {done.seconds:.0f} s, exit status {done.status}; "
                f"{len(done.files())} files in {done.out}"
            )
            return 0 if done.verdict == "COMPLETE" else 1
    except (sealed.NotPermitted, sealed.Broken, environment.CannotMake, kernels.BadKernel, story.Failed) as error:
        print(f"kaggle_sim: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
