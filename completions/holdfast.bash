# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# bash completion of holdfast: commands, flags, and values where there are few. Needs nothing of the package bash-completion,
# so it may also be sourced by hand.

# What a command takes: flag=VALUES, or flag alone for a switch; @=VALUES for a positional argument. Values in lower case
# are words to be given as they are.
# By scripts/document-flags, from --help:
_holdfast_commands='train supervise eval inspect verify replay pack info bench doctor'
_holdfast_table() {
    case $1 in
        '') _holdfast_words='help version' ;;
        'train') _holdfast_words='help data=DATA run=DIR epochs=N max-steps=N recipe=tutorial|strong batch-size=N replicas=N seed=N device=auto|cpu|cuda threads=N augment=none|crop-flip label-smoothing=X lr=X momentum=X nesterov=true|false weight-decay=X ema-decay=X model=resnet18|resnet34 width=N reduction=exact|fast precision=fp32|tf32|bf16 lr-schedule=step|cosine|one-cycle lr-step-size=N lr-gamma=X warmup-epochs=N tail=exact|pad limit-train=N limit-test=N eval-batch-size=N save-every-epochs=N save-every-steps=N save-every-minutes=X stop-after-minutes=X check-replicas-every=N no-progress-limit=N digest-every=N keep=N watchdog-seconds=N resume=auto|never|FILE init-from=FILE log-indices=FILE cuda-graph=auto|on|off profile-steps=STEPS progress=auto|always|never allow-platform-change doctor dry-run print-config config=FILE' ;;
        'supervise') _holdfast_words='help np=N min-np=N max-restarts=N mpirun=TEXT' ;;
        'eval') _holdfast_words='help data=DATA limit-test=N eval-batch-size=N threads=N device=auto|cpu|cuda json config=FILE @=FILE|DIR' ;;
        'inspect') _holdfast_words='help json config=FILE @=FILE|DIR' ;;
        'verify') _holdfast_words='help json config=FILE @=FILE|DIR' ;;
        'replay') _holdfast_words='help step=N data=DATA config=FILE @=DIR' ;;
        'pack') _holdfast_words='help quality=N train-per-class=N test-per-class=N config=FILE @=DATA @=FILE' ;;
        'info') _holdfast_words='help json config=FILE' ;;
        'bench') _holdfast_words='help recipe=tutorial|strong batch-size=N replicas=N seed=N device=auto|cpu|cuda threads=N augment=none|crop-flip label-smoothing=X lr=X momentum=X nesterov=true|false weight-decay=X ema-decay=X model=resnet18|resnet34 width=N reduction=exact|fast precision=fp32|tf32|bf16 data=DATA limit-train=N steps=N warm-up=N cuda-graph=auto|on|off json config=FILE' ;;
        'doctor') _holdfast_words='help run=DIR keep=N data=DATA recipe=tutorial|strong batch-size=N replicas=N seed=N device=auto|cpu|cuda threads=N augment=none|crop-flip label-smoothing=X lr=X momentum=X nesterov=true|false weight-decay=X ema-decay=X model=resnet18|resnet34 width=N reduction=exact|fast precision=fp32|tf32|bf16 json quick config=FILE' ;;
        *) _holdfast_words='' ;;
    esac
}
# End of what scripts/document-flags wrote

# _holdfast_complete_value CURRENT VALUES
_holdfast_complete_value() {
    local current=$1 value words=()
    for value in ${2//|/ }; do
        case $value in
            FILE)
                compopt -o filenames 2>/dev/null
                mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$current")
                ;;
            DIR)
                compopt -o filenames 2>/dev/null
                mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -d -- "$current")
                ;;
            DATA)
                compopt -o filenames 2>/dev/null
                mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$current")
                words+=(sample synthetic)
                ;;
            *[[:lower:]]*) words+=("$value") ;;
        esac
    done
    mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -W "${words[*]}" -- "$current")
}

_holdfast() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} flag='' command='' word entry i
    local given=' ' flags=() positional=''
    COMPREPLY=()
    # "=" is a word of its own to bash: --device=c is "--device" "=" "c".
    if [[ $current == = ]]; then
        flag=$before current=''
    elif [[ $before == = ]]; then
        flag=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $before == --?* ]]; then
        flag=$before
    fi
    for ((i = 1; i < COMP_CWORD; ++i)); do
        word=${COMP_WORDS[i]}
        case $word in
            --) command='' ;; # another command follows
            -*) given+="$word " ;;
            *) [[ -n $command ]] || command=$word ;;
        esac
    done
    local _holdfast_words
    _holdfast_table "$command"
    for entry in $_holdfast_words; do
        if [[ -n $flag && $entry == "${flag#--}="* ]]; then
            _holdfast_complete_value "$current" "${entry#*=}"
            return
        fi
        case $entry in
            @=*) positional+="${entry#@=}|" ;;
            *) [[ $given == *" --${entry%%=*} "* ]] || flags+=("--${entry%%=*}") ;;
        esac
    done
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "${flags[*]}" -- "$current")
    elif [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$_holdfast_commands" -- "$current")
    else
        _holdfast_complete_value "$current" "$positional"
    fi
}
complete -F _holdfast holdfast
