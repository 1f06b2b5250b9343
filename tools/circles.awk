# Finds files of one crate that import each other in a circle: awk -v root=crates/x/src -v max=8 -f tools/circles.awk
# FILES
#
# Prints one line for each circle of more than `max` files. A file imports another when it names a path into its module, by
# `crate::`, `super::` or `self::`, also in groups, or into a module of its own by that module's name. A path to an item of the
# crate's root is no import, because the root is the crate's interface. Tests are left out.

function module_of(file, path) {
    path = substr(file, length(root) + 2)
    sub(/\.rs$/, "", path)
    sub(/(^|\/)(mod|lib|main)$/, "", path)
    gsub(/\//, "::", path)
    return path
}

# The file that a path leads to: its longest prefix that is a module.
function leads_to(path) {
    while (path != "" && !(path in file_of)) if (!sub(/::[^:]*$/, "", path)) path = ""
    return path
}

function imports(from, path, to) {
    to = leads_to(path)
    if (to != "" && to != from && from != "") edge[from, to] = 1
}

# Every path of `prefix` and a tree such as a::{b, c::d}.
function expand(from, prefix, tree, depth, at, begin, c, item) {
    gsub(/[ \t\n]+/, " ", tree)
    depth = 0
    begin = 1
    for (at = 1; at <= length(tree) + 1; at++) {
        c = substr(tree, at, 1)
        if (c == "{") depth++
        if (c == "}") depth--
        if ((c == "," && depth == 0) || at > length(tree)) {
            item = substr(tree, begin, at - begin)
            begin = at + 1
            gsub(/^ +| +$/, "", item)
            if (item ~ /^\{.*\}$/) expand(from, prefix, substr(item, 2, length(item) - 2))
            else if (match(item, /::\{.*\}$/)) expand(from, join(prefix, substr(item, 1, RSTART - 1)), substr(item, RSTART + 3, RLENGTH - 4))
            else if (item != "") { sub(/ as .*/, "", item); imports(from, join(prefix, item)) }
        }
    }
}

function join(prefix, path) {
    return prefix == "" ? path : path == "" ? prefix : prefix "::" path
}

function parent(module) {
    return sub(/::[^:]*$/, "", module) ? module : ""
}

# The module where a path starts that begins with `word` (crate, self or super) in module `from`.
function base(from, word) {
    return word == "crate" ? "" : word == "self" ? from : parent(from)
}

function scan(from, text, word, rest, tail, end, depth, c, prefix) {
    while (match(text, /(^|[^A-Za-z0-9_:$])(crate|self|super)::/)) {
        word = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        gsub(/[^a-z]/, "", word)
        prefix = base(from, word)
        while (text ~ /^super::/) { prefix = parent(prefix); text = substr(text, 8) }
        # The whole path, with the group at its end.
        match(text, /^[A-Za-z0-9_:]*/)
        rest = substr(text, 1, RLENGTH)
        tail = substr(text, RLENGTH + 1)
        if (tail ~ /^\{/ && (rest == "" || rest ~ /::$/)) {
            depth = 0
            for (end = 1; end <= length(tail); end++) {
                c = substr(tail, end, 1)
                if (c == "{") depth++
                if (c == "}" && --depth == 0) break
            }
            rest = rest substr(tail, 1, end)
        }
        if (rest == "" && tail ~ /^\*/) imports(from, prefix)
        else expand(from, prefix, rest)
    }
}

# Tarjan's algorithm: sets of files in which each leads to every other.
function visit(node, to, pair, size, names, member) {
    index_of[node] = low[node] = ++visited
    stack[++top] = node
    on_stack[node] = 1
    for (to in file_of) {
        if (!((node, to) in edge)) continue
        if (!(to in index_of)) {
            visit(to)
            if (low[to] < low[node]) low[node] = low[to]
        } else if (on_stack[to] && index_of[to] < low[node]) low[node] = index_of[to]
    }
    if (low[node] != index_of[node]) return
    size = 0
    names = ""
    do {
        member = stack[top--]
        on_stack[member] = 0
        size++
        names = names (names == "" ? "" : ", ") substr(file_of[member], length(root) + 2)
    } while (member != node)
    if (size > max) printf "%s: %d files import each other in a circle, and %d may: %s\n", root, size, max, names
}

FNR == 1 { is_for_tests = 0 }
FNR == 1 { module = module_of(FILENAME); if (module != "") file_of[module] = FILENAME; in_tests = 0 }
# Tests are a module at the end of a file; other test-only items of one line are left out individually.
is_for_tests { is_for_tests = 0; if (/^(pub(\([a-z]*\))? )?mod [a-z_]+ \{/) in_tests = 1; if (/;$/) next }
/^#\[cfg\(test\)\]/ { is_for_tests = 1; next }
!in_tests { line = $0; sub(/(^|[ \t])\/\/.*/, "", line); text_of[module] = text_of[module] line "\n" }

END {
    for (module in file_of) scan(module, text_of[module])
    for (module in file_of) {
        name = module
        sub(/.*::/, "", name)
        if (text_of[parent(module)] ~ ("(^|[^A-Za-z0-9_:$])" name "::")) imports(parent(module), module)
    }
    for (module in file_of) if (!(module in index_of)) visit(module)
}
