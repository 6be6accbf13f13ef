-- Read a queue for a backup, in bounded pieces (docs/operate/backup.md). The caller finds the keys by SCAN.
-- backup_facts: KEYS 1 meta   -> packed {now, broadcast 0|1, features}
--   broadcast: subscriptions read its stream   features: the field `features` of P:meta, or ''
-- backup_jobs: return the records of jobs.
--   KEYS 1 meta   ARGV 1 packed {ids, parents 0|1}   -> packed {rows, taken, deferred, used, large}
--   row: {id, due, fields}: fields and values of the record, flat; due: its score in `scheduled` or `delayed-own`, or ''
--   taken: how many of the ids were read; the caller sends the others again   used: CPU time of this call, microseconds
--   deferred: with parents = 0, the ids of jobs that have children, which are not in the rows: a parent is read last,
--   so that its record counts every child that ended and was removed meanwhile
--   large: ids of jobs whose record has more than FIELDS fields, as that of a parent with thousands of children: they are
--   not in the rows, and read as other keys, page by page
-- backup_keys: return the content of other keys of the queue, page by page.
--   KEYS 1 meta   ARGV 1 packed {suffixes, cursor}   -> packed {rows, taken, cursor, used}
--   suffixes: names of keys without P; the first is read from the cursor on ('' = its start)
--   row: {suffix, kind, ttl, content}   kind: string, hash, list, set, zset, stream; ttl: ms, or -1
--   content: as the server's own commands return it, flat; of a stream, id and fields by turns
--   taken: how many keys were read to their end   cursor: of the next key, '' = its start
-- Bound: IDS ids, SUFFIXES keys; a reply ends after BYTES, or one value above that.

local STREAM_ENTRY = G.rows.stream_entry

local IDS, SUFFIXES, BYTES, FIELDS = 200, 500, 1048576, 2000
local PAGE, ELEMENTS, SHORT_PAGE = 500, 1000, 20

local function bytes_of(list)
  local n = 0
  for i = 1, #list do n = n + #list[i] end
  return n
end

-- Return the CPU time since `started`, in microseconds.
-- Redis before 7.2 has no `os`: there the time of the calls does not slow a backup down.
local function clock()
  local ok, seconds = pcall(function() return os.clock() end)
  return ok and seconds or 0
end

local function used_since(started) return math.floor((clock() - started) * 1000000 + 0.5) end

G.export('backup_facts', { 'no-writes' }, function(q)
  return {
    now = G.now(q), broadcast = G.subscriptions.any(q) and 1 or 0, features = redis.call('HGET', q.meta, 'features') or '',
  }
end)

-- ------------------------------------------------------------------ records

local SCHEDULED = { delayed = true, prioritized = true }

local function due_of(q, id)
  return redis.call('ZSCORE', q.scheduled, id) or redis.call('ZSCORE', q.delayed_own, id)
    or redis.call('ZSCORE', q.fair_delayed, id)
end

-- Return the state, and the size of the long values.
local function measure(fields)
  local state, size = nil, 500
  for i = 1, #fields, 2 do
    local name = fields[i]
    if name == 'state' then
      state = fields[i + 1]
    elseif name ~= 'id' then
      size = size + #fields[i + 1]
    end
  end
  return state, size
end

G.export('backup_jobs', { 'no-writes' }, function(q, r)
  local started, rows, deferred, large, taken, size = clock(), {}, {}, {}, 0, 0
  if #r.ids > IDS then error('too many ids: ' .. #r.ids) end
  -- Without the mark no job of this library has children, and those of a peer matter only while it waits for them.
  local have_children = r.parents == 0 and redis.call('HEXISTS', q.meta, 'sideKeys') == 1
  for _, id in ipairs(r.ids) do
    local key = q.J .. id
    local count = G.pcall('HLEN', key)
    local fields, state, bytes
    if type(count) == 'number' and count <= FIELDS then
      fields = redis.call('HGETALL', key)
      state, bytes = measure(fields)
    elseif type(count) == 'number' then
      large[#large + 1] = id
    end
    if state then
      local waits = state == 'waiting-children' and r.parents == 0
      if waits or (have_children and redis.call('EXISTS', q.P .. 'deps:' .. id) == 1) then
        deferred[#deferred + 1] = id
      else
        local due = SCHEDULED[state] and due_of(q, id) or ''
        rows[#rows + 1] = G.new.backed_up_job({ id = id, due = due, fields = fields })
        size = size + bytes
      end
    end
    taken = taken + 1
    if size > BYTES then break end
  end
  return { rows = rows, taken = taken, deferred = deferred, used = used_since(started), large = large }
end)

-- ------------------------------------------------------------------ other keys

-- Read a page of a list or stream in short steps, because one element may be large. step(at): elements, next position.
local function in_steps(at, step)
  local content = {}
  for _ = 1, ELEMENTS / SHORT_PAGE do
    local found, following = step(at)
    for i = 1, #found do content[#content + 1] = found[i] end
    at = following
    if at == '' or bytes_of(content) > BYTES then break end
  end
  return content, at
end

local function scanned(command)
  return function(key, cursor) return G.scan(command, key, cursor, PAGE) end
end

local READ = { hash = scanned('HSCAN'), set = scanned('SSCAN'), zset = scanned('ZSCAN') }

READ.string = function(key) return { redis.call('GET', key) or nil }, '' end

READ.list = function(key, cursor)
  return in_steps(cursor, function(at)
    local first = G.count_of(at)
    local found = redis.call('LRANGE', key, first, first + SHORT_PAGE - 1)
    return found, #found == SHORT_PAGE and G.int(first + SHORT_PAGE) or ''
  end)
end

READ.stream = function(key, cursor)
  return in_steps(cursor, function(at)
    local flat, last = {}, ''
    local found = redis.call('XRANGE', key, G.after(at), '+', 'COUNT', SHORT_PAGE)
    for _, entry in ipairs(found) do
      last = entry[STREAM_ENTRY.id]
      G.append(flat, last, cmsgpack.pack(entry[STREAM_ENTRY.fields]))
    end
    return flat, #found == SHORT_PAGE and last or ''
  end)
end

G.export('backup_keys', { 'no-writes' }, function(q, r)
  local started, rows, taken, size, cursor = clock(), {}, 0, 0, r.cursor
  if #r.suffixes > SUFFIXES then error('too many keys: ' .. #r.suffixes) end
  for _, suffix in ipairs(r.suffixes) do
    local key = q.P .. suffix
    local kind = redis.call('TYPE', key).ok
    if READ[kind] then
      local content
      content, cursor = READ[kind](key, cursor)
      if #content > 0 then
        local ttl = redis.call('PTTL', key)
        rows[#rows + 1] = G.new.backed_up_key({ suffix = suffix, kind = kind, ttl = ttl, content = content })
        size = size + bytes_of(content) + 50 * #content
      end
    else
      cursor = ''
    end
    if cursor ~= '' then break end
    taken = taken + 1
    if size > BYTES / 4 then break end
  end
  return { rows = rows, taken = taken, cursor = cursor, used = used_since(started) }
end)
