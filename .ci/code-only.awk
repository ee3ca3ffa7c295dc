# Writes Rust files with comments and `#[cfg(test)]` items blanked into the folder `into`, whose folders are there. Line
# numbers are kept. It relies on rustfmt's layout (checked by `.ci/fmt`): an item ends at the first line of its own indentation
# that starts with `}` or ends with `;`, `,` or `}`. With -v list=1 it prints instead the modules declared
# `#[cfg(test)] mod NAME;`: the file, a tab, and NAME or path=FILE.
function indentation(s) { match(s, /^ */); return RLENGTH }
function show(s) { if (!list) print s > (into "/" FILENAME) }

FNR == 1 { if (last != "") close(into "/" last); last = FILENAME; whole = comment = skip = 0 }

/^#!\[cfg\(test\)\]/ { whole = 1 }
whole { show(""); next }

comment { if ($0 ~ /\*\//) comment = 0; show(""); next }
/^ *\/\*/ { if ($0 !~ /\*\//) comment = 1; show(""); next }

{ line = $0; sub(/(^|[ \t])\/\/.*$/, "", line) }

!skip && line ~ /^ *#\[cfg\((test|all\(test)[,)]/ { skip = 1; at = indentation(line); file = ""; show(""); next }

skip {
    show("")
    if (line ~ /^ *$/) next
    if (indentation(line) == at && line ~ /^ *(#\[|\)\])/) {
        if (line ~ /^ *#\[path = "/) { file = line; sub(/^[^"]*"/, "", file); sub(/".*$/, "", file) }
        next
    }
    if (list && indentation(line) == at && line ~ /^ *(pub(\([a-z]+\))? )?mod [a-z0-9_]+;$/) {
        name = line; sub(/^.*mod /, "", name); sub(/;$/, "", name)
        print FILENAME "\t" (file == "" ? name : "path=" file)
    }
    if (indentation(line) == at && line ~ /(^ *\}|[;,}]$)/) skip = 0
    next
}

{ show(line) }
