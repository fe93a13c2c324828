# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
# bash completion for gradwire-run. `cmake --install` puts this file where bash-completion finds it; otherwise source it.

# True when the word before the cursor belongs to the program: the first word that is no option, and no value of one.
_gradwire_run_in_program() {
    local word skip=false index
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${COMP_WORDS[index]}"
        if $skip; then
            skip=false
        elif [[ "$word" == "--" ]]; then
            return 0
        elif [[ " $1 " == *" $word "* ]]; then
            skip=true
        elif [[ "$word" != -* ]]; then
            return 0
        fi
    done
    return 1
}

_gradwire_run() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD - 1]}"
    local with_value="-n --ranks --nproc-per-node --env --log-dir --color --stdin --timeout --grace --max-restarts --hosts --ssh
        --nnodes --node-rank --rendezvous --job-id --secret-file --master-port --rendezvous-timeout --heartbeat-timeout --stall --flight-dir --record --watch-port
        --elastic --join --serve --deaths-per-minute --drop-slow --membership-log --replay"
    local flags="-h --help --version --info --watch --pin --no-prefix --end-with-stdin --report-steps --replace-stalled"
    COMPREPLY=()
    with_value="${with_value//$'\n'/ }"
    if _gradwire_run_in_program "$with_value"; then
        compopt -o default 2>/dev/null  # the program's own arguments: files
        return
    fi
    case "$previous" in
        --color) mapfile -t COMPREPLY < <(compgen -W "auto always never" -- "$current") ;;
        --stdin) mapfile -t COMPREPLY < <(compgen -W "rank0 none" -- "$current") ;;
        --log-dir | --flight-dir | --record) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
        --secret-file | --membership-log | --replay) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
        --hosts | --rendezvous | --join | --serve) mapfile -t COMPREPLY < <(compgen -A hostname -- "$current") ;;
        --env) mapfile -t COMPREPLY < <(compgen -S= -A export -- "$current") ;;
        *)
            [[ " $with_value " == *" $previous "* ]] && return  # a number, which nobody can guess
            if [[ "$current" == -* ]]; then
                mapfile -t COMPREPLY < <(compgen -W "$with_value $flags" -- "$current")
            else
                mapfile -t COMPREPLY < <(compgen -c -f -- "$current" | sort -u)  # the program
            fi
            ;;
    esac
}

complete -F _gradwire_run -o filenames gradwire-run
