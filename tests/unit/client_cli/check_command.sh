#!/bin/sh
# check_command.sh STATUS WORDS COMMAND...: the command ends with STATUS and prints WORDS (a basic regular expression).
status=$1
words=$2
shift 2
output=$("$@" 2>&1 </dev/null)
got=$?
if [ "$got" != "$status" ]; then
	printf 'exit status %s instead of %s\n%s\n' "$got" "$status" "$output"
	exit 1
fi
printf '%s\n' "$output" | grep -q -- "$words" || {
	printf 'no "%s" in:\n%s\n' "$words" "$output"
	exit 1
}
