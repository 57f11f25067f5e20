#!/bin/sh
# Asks a trained adapter a question without a terminal: sh ask.sh CONFIGURATION FOLDER [OPTION...]
set -e
config=$1 folder=$2
shift 2
echo "What is 2 plus 3?" | axolotl inference "$config" --lora-model-dir="$folder" --prompter=AlpacaPrompter "$@" >"$folder/answer.txt"
cat "$folder/answer.txt"
