/* The guest's command server: a shell behind a TCP port.
 *
 * A connection carries one line, which /bin/sh runs; its output, which is lines, comes back as it
 * is made, then a last line "exit N". When the client goes away first, the command and all it started are killed:
 * whoever runs a command under a time limit needs to clean up nothing in the guest.
 *
 * It runs as the guest's first process, so it also buries orphans.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_LINE = 8192, POLL_MS = 5, GRACE_MS = 200 };

static int read_line(int fd, char *line)
{
    int len = 0;
    while (len < MAX_LINE - 1) {
        char c;
        if (read(fd, &c, 1) != 1)
            return -1;
        if (c == '\n')
            break;
        line[len++] = c;
    }
    line[len] = 0;
    return len;
}

static int client_is_gone(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLRDHUP };
    return poll(&p, 1, POLL_MS) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

static int wait_for(pid_t child, int fd)
{
    int status;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (client_is_gone(fd)) {
            kill(-child, SIGTERM);
            for (int ms = 0; ms < GRACE_MS && waitpid(child, &status, WNOHANG) == 0; ms += POLL_MS)
                usleep(POLL_MS * 1000);
            kill(-child, SIGKILL);
            exit(0);
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void serve(int fd)
{
    char line[MAX_LINE];
    if (read_line(fd, line) < 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        dup2(fd, 1);
        dup2(fd, 2);
        close(fd);
        execl("/bin/sh", "sh", "-c", line, NULL);
        _exit(127);
    }
    setpgid(child, child);
    dprintf(fd, "exit %d\n", wait_for(child, fd));
}

int main(int argc, char **argv)
{
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[argc - 1])) };
    int on = 1, listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&any, sizeof any) || listen(listener, 64)) {
        perror("shelld");
        return 1;
    }
    signal(SIGCHLD, SIG_IGN); /* this process needs no news of its children */
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if (fork() == 0) {
            signal(SIGCHLD, SIG_DFL);
            close(listener);
            serve(fd);
            _exit(0);
        }
        close(fd);
    }
}
