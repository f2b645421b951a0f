"""What shells and `man` are given: completions that complete, and pages without a mistake."""

import subprocess

import pytest

from tests import servers

#: What bash would offer after these words.
COMPLETE = """
source /dev/stdin <<< "$SCRIPT"
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMPREPLY=()
$(complete -p dormouse | sed -E 's/.*-F ([^ ]+).*/\\1/') dormouse "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def printed(*arguments):
    return subprocess.run([servers.dormouse_binary(), *arguments], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("words, offered", [("dormouse st", {"status"}), ("dormouse config ch", {"check"}), ("dormouse serve --memc", {"--memcached"})])
def test_bash_completes_commands_and_options(words, offered):
    script = COMPLETE.format(words=words)
    done = subprocess.run(["bash", "-c", script], env={"SCRIPT": printed("completions", "bash"), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (set(done.stdout.split()), done.stderr) == (offered, "")


@pytest.mark.parametrize("shell", ("zsh", "fish"))
def test_other_shells_have_every_command(shell):
    script = printed("completions", shell)
    assert all(command in script for command in ("serve", "status", "journal", "certificate"))


def test_each_page_is_accepted_by_groff(tmp_path):
    printed("man-pages", str(tmp_path))
    pages = sorted(tmp_path.iterdir())
    assert {"dormouse.1", "dormouse-serve.1", "dormouse-status.1", "dormouse-journal-verify.1"} <= {page.name for page in pages}
    for page in pages:
        done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", str(page)], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), page.name


def test_a_directory_that_is_not_there_is_named():
    done = subprocess.run([servers.dormouse_binary(), "man-pages", "/nowhere"], capture_output=True, text=True)
    assert done.returncode == 1 and "/nowhere" in done.stderr, done.stderr
