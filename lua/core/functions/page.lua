-- page: return one page of the jobs in a state, for listing and iterating.
-- KEYS 1 meta   ARGV 1 packed {state, cursor, count, fields [, name [, where [, newest]]]}   -> packed {rows, cursor}
-- state: also `above-normal` and `below-normal`, the prioritized jobs with a priority or a rank above 0, and the others.
-- row: {id, position, values of the requested fields}; cursor '' = the end. Bound: `count` jobs per call, and 512
-- groups.
-- fields empty: rows are only counted and no record is read, to skip jobs.
-- name: only jobs with this name, so a page may have few or no rows before the end.
-- where: rows of `condition` {field, texts, low, high, contains}: only jobs that may meet all of them. texts: the field is
-- one of them; low, high: it is a number within these bounds (false = no such bound); contains: it contains all of these
-- texts. The client applies its conditions again, so a number in an unusual form passes.
-- newest: finished, suspended and parent jobs with the highest score first, and the newest entries of the stream first.
-- Cursors name a position, not a rank: a job that keeps its state is returned once, however many others are added or
-- removed.
--   Sets: score and id of the last row. If that job has left the set, the jobs with its score are returned again; the
--   client skips those it has seen. `r:<rank>` starts at a rank, only in the states of SETS.
--   Streams: the last entry id. Lists: an index from the end that is not popped, and the job before it.
--   Parked jobs of groups: the cursor of the group scan, the group, and the position in it. Groups created meanwhile
--   may cause jobs to be returned again.

local PENDING_ENTRY = G.rows.pending_entry
local STREAM_ENTRY = G.rows.stream_entry
local CONDITION = G.rows.condition
local DIGITS_MAX = 15
local GROUPS_A_SCAN = 100
local BANDS_A_PAGE = 256
local KEYS_A_PAGE = 200
local MOVED_MAX = 1000 -- jobs of a list that may leave between two pages without the list being read again

local SETS = { completed = 'completed', failed = 'failed', suspended = 'suspended',
  ['waiting-children'] = 'waiting_children' }

-- Prepare the conditions of a request.
local function conditions(where)
  local prepared = { fields = {} }
  for n, row in ipairs(where) do
    local texts = row[CONDITION.texts]
    prepared[n] = { texts = texts and G.positions(texts), low = row[CONDITION.low], high = row[CONDITION.high],
      contains = row[CONDITION.contains] }
    prepared.fields[n] = row[CONDITION.field]
  end
  return prepared
end

local function contains_all(value, texts)
  for _, text in ipairs(texts) do
    if not string.find(value, text, 1, true) then return false end
  end
  return true
end

local function meets(condition, value)
  if not value then return false end
  if condition.contains then return contains_all(value, condition.contains) end
  if condition.texts then return condition.texts[value] end
  local number = #value <= DIGITS_MAX and string.find(value, '^%d+$') and tonumber(value)
  if not number then return value ~= '' end
  return not (condition.low and number < condition.low or condition.high and number > condition.high)
end

local function may_match(q, where, id)
  local values = G.pcall('HMGET', q.J .. id, unpack(where.fields))
  if values.err then return false end
  for n = 1, #where do
    if not meets(where[n], values[n]) then return false end
  end
  return true
end

local function read(q, fields, rows, id, position)
  if #fields == 0 then
    rows[#rows + 1] = 1
    return
  end
  if fields.only and G.pcall('HGET', q.J .. id, 'name') ~= fields.only then return end
  if fields.where and not may_match(q, fields.where, id) then return end
  local values = G.pcall('HMGET', q.J .. id, unpack(fields))
  if not values.err then rows[#rows + 1] = G.new.listed({ id = id, position = position, values = values }) end
end

-- `below` (a number or nil) ends the range before that score.
local function from_set(q, key, cursor, count, fields, low, below, id_of)
  local rows = {}
  local high = below and '(' .. G.int(below) or '+inf'
  local newest = fields.newest
  local found, after = G.set_slice(key, cursor, count, newest and high or low, newest and low or high, newest)
  for i = 1, #found, 2 do
    if below and tonumber(found[i + 1]) >= below then return rows, '' end
    local id = found[i]
    if id_of then id = id_of(id) end
    if id then read(q, fields, rows, id, found[i + 1]) end
  end
  return rows, after
end

-- Read by priority. A cursor `b:<band>` is the start of one.
local function scheduled(q, cursor, count, fields, ready)
  local now, band = G.now(q), tonumber(string.match(cursor, '^b:(%d+)$'))
  if band then
    band, cursor = G.next_band(q, band), ''
  elseif cursor == '' then
    band = G.next_band(q, ready and 1 or 0)
  else
    band = G.band_of(string.match(cursor, '^(.-)@'))
  end
  for _ = 1, BANDS_A_PAGE do
    if not band then return {}, '' end
    local low, below = G.band_bounds(band, now, ready)
    local rows, next_cursor = from_set(q, q.scheduled, cursor, count, fields, low, below)
    if next_cursor ~= '' then return rows, next_cursor end
    band, cursor = G.next_band(q, band + 1), ''
    if #rows > 0 then return rows, band and 'b:' .. G.int(band) or '' end
  end
  return {}, band and 'b:' .. G.int(band) or ''
end

-- Read the sets of features/ranks and `scheduled` one after the other, the most urgent first. A cursor of our sets begins
-- with the number of the set, `o<number>:`.
local OWN = {
  prioritized = { 'ranked_above', false, 'ranked_below' },
  ['above-normal'] = { 'ranked_above', false },
  ['below-normal'] = { 'ranked_below' },
  delayed = { false, 'delayed_own', 'fair_delayed' },
}

local function one_set(q, name, cursor, count, fields, ready)
  if not name then return scheduled(q, cursor, count, fields, ready) end
  return from_set(q, q[name], cursor, count, fields, '-inf', nil, ready and G.ranks.id_of or nil)
end

-- Return the number of the first set from `at` on that may have jobs; nil if there is none.
local function next_set(q, sets, at)
  for number = at, #sets do
    if not sets[number] or redis.call('EXISTS', q[sets[number]]) == 1 then return number end
  end
  return nil
end

local function with_ranks(q, state, cursor, count, fields)
  local sets, ready = OWN[state], state ~= 'delayed'
  local number, rest = string.match(cursor, '^o(%d):(.*)$')
  -- The cursors of `scheduled` have no prefix.
  local at = tonumber(number) or cursor ~= '' and ready and 2 or next_set(q, sets, 1)
  rest = rest or cursor
  if not at then return {}, '' end
  for _ = 1, #sets do
    local rows, next_cursor = one_set(q, sets[at], rest, count, fields, ready)
    if next_cursor ~= '' then return rows, sets[at] and 'o' .. at .. ':' .. next_cursor or next_cursor end
    at, rest = next_set(q, sets, at + 1), ''
    if not at then return rows, '' end
    if #rows > 0 then return rows, 'o' .. at .. ':' end
  end
  return {}, ''
end

local function pending_between(q, first, last, count)
  local seen = {}
  for _, p in ipairs(G.pcall('XPENDING', q.stream, G.GROUP, first, last, count)) do seen[p[PENDING_ENTRY.id]] = true end
  return seen
end

-- A list keeps its order but not its indexes, since jobs are removed from its middle: the cursor also names the last
-- job. If that job has left the list, or moved by more than MOVED_MAX, the list is read again (the client skips
-- the jobs it has seen).
local function list_place(key, cursor)
  local at, last = string.match(cursor, '^(%d+)@(.*)$')
  at = tonumber(at)
  if at == 0 or redis.call('LINDEX', key, at - 1) == last then return at end
  local first = math.max(0, at - MOVED_MAX)
  local ids = redis.call('LRANGE', key, first, at - 1)
  for i = #ids, 1, -1 do
    if ids[i] == last then return first + i end
  end
  return 0
end

local function from_list(q, key, prefix, next_cursor, cursor, count, fields)
  local rows, from = {}, list_place(key, cursor)
  local ids = redis.call('LRANGE', key, from, from + count - 1)
  for i = 1, #ids do read(q, fields, rows, ids[i], '') end
  if #ids == count then return rows, prefix .. G.int(from + count) .. '@' .. ids[#ids] end
  return rows, next_cursor
end

-- A position in several sorted sets: the length of a name, the name, and the position in its set. Return the last two.
local function name_and_place(position)
  local length, rest = string.match(position, '^(%d+):(.*)$')
  length, rest = tonumber(length) or 0, rest or ''
  return string.sub(rest, 1, length), string.sub(rest, length + 1)
end

-- Read the sets of the names, of which the first may be `from`, read up to `place`. Return the rows, and the position of a
-- full page.
local function from_sets(q, names, key_of, from, place, count, fields)
  local rows, left = {}, count
  for _, name in ipairs(names) do
    local found, after = G.set_slice(key_of(q, name), name == from and place or '', left, '-inf', '+inf')
    for i = 1, #found, 2 do read(q, fields, rows, found[i], found[i + 1]) end
    if after ~= '' then return rows, #name .. ':' .. name .. after end
    left = left - #found / 2
  end
  return rows, nil
end

local function fair_waiting(q, cursor, count, fields)
  local from, place = name_and_place(cursor)
  local low = from == '' and '-' or (place == '' and '(' or '[') .. from
  local keys = redis.call('ZRANGE', q.fair_keys, low, '+', 'BYLEX', 'LIMIT', 0, KEYS_A_PAGE)
  local rows, position = from_sets(q, keys, G.fair.queue_of, from, place, count, fields)
  local last = keys[KEYS_A_PAGE]
  position = position or last and #last .. ':' .. last
  return rows, position and 'f:' .. position or ''
end

-- Sources after the stream, by the prefix of their cursors.
local AFTER_STREAM = {
  ['l:'] = function(q, ...) return from_list(q, q.lifo, 'l:', 'p:0@', ...) end,
  ['p:'] = function(q, ...) return from_list(q, q.priority, 'p:', 's:', ...) end,
  ['s:'] = function(q, cursor, count, fields)
    local rows, next_cursor = from_set(q, q.suspects, cursor, count, fields, '-inf')
    return rows, next_cursor ~= '' and 's:' .. next_cursor or (G.fair.used(q) and 'f:' or '')
  end,
  ['f:'] = fair_waiting,
}

-- Return entries of the stream after the cursor, and the ids of the oldest and the newest of them.
local function stream_slice(q, cursor, count, newest)
  local command, start, stop = 'XRANGE', '-', '+'
  if newest then command, start, stop = 'XREVRANGE', '+', '-' end
  local entries = redis.call(command, q.stream, cursor == '' and start or '(' .. cursor, stop, 'COUNT', count)
  if #entries == 0 then return entries end
  local first, last = G.first(entries)[STREAM_ENTRY.id], entries[#entries][STREAM_ENTRY.id]
  if newest then return entries, last, first end
  return entries, first, last
end

local function waiting(q, cursor, count, fields)
  local source = AFTER_STREAM[string.sub(cursor, 1, 2)]
  if source then return source(q, string.sub(cursor, 3), count, fields) end
  local rows = {}
  local entries, oldest, newest = stream_slice(q, cursor, count, fields.newest)
  if #entries == 0 then return rows, 'l:0@' end
  local last = entries[#entries][STREAM_ENTRY.id]
  local seen = pending_between(q, oldest, newest, count)
  for _, e in ipairs(entries) do
    local id = not seen[e[STREAM_ENTRY.id]] and G.entry_job(e[STREAM_ENTRY.fields])
    if id then read(q, fields, rows, id, e[STREAM_ENTRY.id]) end
  end
  return rows, #entries == count and last or 'l:0@'
end

local function active(q, cursor, count, fields)
  if string.sub(cursor, 1, 2) == 'z:' then
    local rows, next_cursor = from_set(q, q.list_heartbeats, string.sub(cursor, 3), count, fields, '-inf')
    return rows, next_cursor ~= '' and 'z:' .. next_cursor or ''
  end
  local rows = {}
  local pending = G.pcall('XPENDING', q.stream, G.GROUP, G.after(cursor), '+', count)
  for _, p in ipairs(pending) do
    local id = G.job_at(q, p[PENDING_ENTRY.id])
    if id then read(q, fields, rows, id, p[PENDING_ENTRY.id]) end
  end
  return rows, #pending == count and pending[count][PENDING_ENTRY.id] or 'z:'
end

-- Sort the groups of a scan page by name, so that a position can be found again.
local function groups_at(q, scan, from)
  local names, found, after = {}, G.scan('HSCAN', q.ordering, scan, GROUPS_A_SCAN)
  for i = 1, #found, 2 do
    if found[i] >= from then names[#names + 1] = found[i] end
  end
  table.sort(names)
  return names, after
end

local function parked(q, name) return q.P .. 'groupq:' .. name end

-- cursor: scan cursor, and the position in the groups of its page.
local function group_waiting(q, cursor, count, fields)
  local scan, position = string.match(cursor, '^(%d*):(.*)$')
  local from, place = name_and_place(position or '')
  local names, next_scan = groups_at(q, scan or '', from)
  local rows, full = from_sets(q, names, parked, from, place, count, fields)
  if full then return rows, (scan or '') .. ':' .. full end
  return rows, next_scan ~= '' and next_scan .. ':0:' or ''
end

local OTHERS = { waiting = waiting, active = active, ['group-waiting'] = group_waiting }

G.export('page', { 'no-writes' }, function(q, r)
  local state, cursor, count, fields = r.state, r.cursor, r.count, r.fields
  fields.only = r.name or nil
  fields.where = r.where and #r.where > 0 and conditions(r.where)
  local rows, next_cursor
  fields.newest = r.newest and (SETS[state] or state == 'waiting')
  if SETS[state] then
    rows, next_cursor = from_set(q, q[SETS[state]], cursor, count, fields, '-inf')
  elseif OWN[state] then
    rows, next_cursor = with_ranks(q, state, cursor, count, fields)
  elseif OTHERS[state] then
    rows, next_cursor = OTHERS[state](q, cursor, count, fields)
  else
    return redis.error_reply('ERR unknown state ' .. tostring(state))
  end
  return { rows = rows, cursor = next_cursor }
end)
