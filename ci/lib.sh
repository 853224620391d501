# Shared by the scripts in this folder: environments, interpreters, the wheel. Source it, do not run it.
# Everything is installed from registries into `.env/` inside the repository; nothing outside of it is changed.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
python=${PYTHON:-python3}
envs=$root/.env
case ${OS:-} in Windows_NT) scripts=Scripts ;; *) scripts=bin ;; esac # where an environment has its programs
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=${UV_LINK_MODE:-hardlink} CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

# The oldest and the newest versions of jax that are supported, and what else the matrix runs: "python jax".
oldest="3.11 0.10.0"
newest="3.13 0.12.0.1"
matrix=("$oldest" "3.11 0.10.2" "3.12 0.11.2" "3.12 0.12.0.1" "$newest")

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# tools: put the build tools of `.env/tools` on the PATH, installing them first if need be.
tools() {
    local wanted="uv==0.9.* maturin>=1.9,<2 ziglang==0.15.* cmake>=3.28,<5 ninja>=1.11"
    if [ "$(cat "$envs/tools/.holds" 2>/dev/null)" != "$wanted" ]; then
        say "tools: $wanted"
        check_python "$python"
        "$python" -m venv --clear "$envs/tools"
        # shellcheck disable=SC2086 # one requirement a word
        "$envs/tools/$scripts/python" -m pip install --quiet $wanted
        printf '%s' "$wanted" >"$envs/tools/.holds"
    fi
    export PATH="$envs/tools/$scripts:$PATH"
}

# check_python INTERPRETER: fail if it is not there or too old.
check_python() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        die "'$1' is no Python 3.11 or newer; set PYTHON to one"
}

# environment NAME PYTHON REQUIREMENT...: make `.env/NAME` hold exactly that. Its programs are in `.env/NAME/$scripts`.
environment() {
    local name=$1 interpreter=$2
    shift 2
    tools
    if [ "$(cat "$envs/$name/.holds" 2>/dev/null)" != "$interpreter $*" ]; then
        say "environment $name: $*"
        check_python "$interpreter"
        rm -rf "${envs:?}/$name"
        uv venv --quiet --no-project --python "$interpreter" "$envs/$name"
        uv pip install --quiet --python "$envs/$name" "$@"
        printf '%s' "$interpreter $*" >"$envs/$name/.holds"
    fi
}

# find_python X.Y: print the path of that interpreter, from the PATH or from pyenv; fail if there is none.
find_python() {
    local candidate
    for candidate in "python$1" "$python" "$HOME"/.pyenv/versions/"$1"*/bin/python "${PYENV_ROOT:-/nonexistent}"/versions/"$1"*/bin/python; do
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    die "no Python $1 on the PATH or under pyenv"
}

# wheel: build the abi3 wheel unless it is newer than its sources, and print its path.
wheel() {
    tools
    local built
    built=$(find dist/host -name 'entangle_jax-*.whl' 2>/dev/null | head -n 1 || true)
    if [ -z "$built" ] || [ -n "$(find Cargo.toml Cargo.lock LICENSE README.md crates python -newer "$built" \
        \( -name '*.rs' -o -name '*.toml' -o -name '*.lock' -o -name '*.md' -o -path 'python/entangle_jax/*' -name '*.py*' ! -name '*.pyc' \) -print -quit)" ]; then
        say "building the wheel"
        rm -rf dist/host
        maturin build --quiet --release --manifest-path python/Cargo.toml --interpreter "$python" --out dist/host >&2
        built=$(find dist/host -name 'entangle_jax-*.whl')
    fi
    printf '%s\n' "$root/$built"
}

# What the tests need beside the package, and what checks them.
test_packages=("pytest>=9,<10" "pytest-xdist>=3.6,<4" "hypothesis>=6.150,<7" "numpy>=2" "scipy>=1.15" "flatbuffers>=24")
lint_packages=("ruff==0.17.*" "mypy>=2,<3")

# dev_environment: the one environment of ci/test and ci/demo, with the newest jax that its Python can have.
dev_environment() {
    environment dev "$python" "jax>=0.10.2" "${test_packages[@]}" "${lint_packages[@]}"
}

# install_wheel NAME [WHEEL]: put the wheel into `.env/NAME`, where its dependencies are already.
install_wheel() {
    uv pip install --quiet --python "$envs/$1" --no-deps --no-index --reinstall "${2:-$(wheel)}"
}

# cargo_tool NAME VERSION: put that cargo subcommand on the PATH, building it first if need be.
cargo_tool() {
    if [ "$(cat "$envs/cargo/.$1" 2>/dev/null)" != "$2" ]; then
        say "cargo install $1 $2"
        cargo install --quiet --locked --root "$envs/cargo" "$1@$2"
        printf '%s' "$2" >"$envs/cargo/.$1"
    fi
    export PATH="$envs/cargo/bin:$PATH"
}

# nightly: check that the nightly compiler is there, which some checks of unsafe code need.
nightly() {
    cargo +nightly --version >&2 || die "needs a nightly Rust: rustup toolchain install nightly --profile minimal"
}
